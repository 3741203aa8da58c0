"""GPT-like decoder families, each by its layout.

Source of every entry: the family's modelling and configuration files in
`transformers` 5.23. Families whose config switches between layouts (Falcon,
MPT, OPT, GPT-Neo's windows, GPT-BigCode's heads) have a reader of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import chain
from typing import Any

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, PartNames, Tracing, Untraced
from plimsoll.planners.families.gpt2 import GPT_2_PARTS
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.gpt import GptDecoder, GptKeys
from plimsoll.planners.families.reading.own_code import OwnCode

# Defaults of transformers' GPTNeoConfig.
NEO_WINDOW = 256
NEO_REPEATS = 12

GPT_NAMES = DecoderNames(embedding="transformer.wte.weight", final_norm="transformer.ln_f")
DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
SUMMARIES = (
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
)  # fmt: skip

BLOOM_IGNORED = (
    "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32", "bias_dropout_fusion", "hidden_dropout",
    "masked_softmax_fusion", "n_inner", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
    "unk_token_id",
)  # fmt: skip
BLOOM = GptDecoder(
    keys=GptKeys(hidden=("n_embed", "hidden_size"), inner=(), positions=("seq_length",)),
    query_key_value=("self_attention.query_key_value",),
    output="self_attention.dense",
    feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    norm_names=("input_layernorm", "post_attention_layernorm"),
    names=DecoderNames(embedding="transformer.word_embeddings.weight", final_norm="transformer.ln_f"),
    embedding_norm="transformer.word_embeddings_layernorm",
    ignored=BLOOM_IGNORED,
)
GPT_NEOX_IGNORED = (
    "attention_probs_dropout_prob", "classifier_dropout", "hidden_act", "hidden_dropout", "hidden_dropout_prob",
    "is_decoder", "rotary_emb_base", "rotary_pct",
)  # fmt: skip
GPT_NEOX = GptDecoder(
    keys=GptKeys(
        hidden=("hidden_size",),
        layers=("num_hidden_layers",),
        heads=("num_attention_heads",),
        inner=("intermediate_size",),
        positions=("max_position_embeddings",),
    ),
    layer="gpt_neox.layers.{layer}",
    query_key_value=("attention.query_key_value",),
    output="attention.dense",
    feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    norm_names=("input_layernorm", "post_attention_layernorm"),
    norms=NormPlacement.PARALLEL_TWO,
    names=DecoderNames(embedding="gpt_neox.embed_in.weight", final_norm="gpt_neox.final_layer_norm", head="embed_out"),
    has_rotary=True,
    rotation_concatenates=True,
    tied_by_default=False,
    ignored=GPT_NEOX_IGNORED,
)
GPT_J_IGNORED = (
    "activation_function", "gradient_checkpointing", "rotary", "rotary_dim", "scale_attn_weights", "tokenizer_class",
    *DROPOUTS, *SUMMARIES,
)  # fmt: skip
GPT_J = GptDecoder(
    query_key_value=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    output="attn.out_proj",
    feed_forward=("mlp.fc_in", "mlp.fc_out"),
    norm_names=("ln_1",),
    norms=NormPlacement.PARALLEL,
    names=GPT_NAMES,
    qkv_bias=False,
    output_bias=False,
    head_bias=True,
    has_rotary=True,
    rotation_concatenates=True,
    tied_by_default=False,
    ignored=GPT_J_IGNORED,
)
GPT_NEO_IGNORED = (
    "activation_function", "attention_layers", "classifier_dropout", "embed_dropout", "gradient_checkpointing",
    "resid_dropout", "tokenizer_class", *SUMMARIES,
)  # fmt: skip
GPT_NEO = GptDecoder(
    keys=GptKeys(
        hidden=("hidden_size",),
        layers=("num_layers", "num_hidden_layers"),
        heads=("num_heads", "num_attention_heads"),
        inner=("intermediate_size",),
        positions=("max_position_embeddings",),
        positions_default=2048,
    ),
    query_key_value=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    output="attn.attention.out_proj",
    feed_forward=("mlp.c_fc", "mlp.c_proj"),
    names=GPT_NAMES,
    qkv_bias=False,
    position_name="transformer.wpe.weight",
    ignored=GPT_NEO_IGNORED,
)
GPT_BIGCODE_IGNORED = (
    "activation_function", "attention_softmax_in_fp32", "inference_runner", "max_batch_size", "max_sequence_length",
    "num_key_value_heads", "pad_key_length", "pre_allocate_kv_cache", "scale_attention_softmax_in_fp32",
    "scale_attn_weights", "validate_runner_input", *DROPOUTS, *SUMMARIES,
)  # fmt: skip
GPT_BIGCODE = GptDecoder(
    keys=GptKeys(positions_default=1024),
    query_key_value=("attn.c_attn",),
    output="attn.c_proj",
    feed_forward=("mlp.c_fc", "mlp.c_proj"),
    names=GPT_NAMES,
    position_name="transformer.wpe.weight",
    ignored=GPT_BIGCODE_IGNORED,
)


def gpt_neox(config: ConfigReader) -> ModelSpec:
    """Return a GPT-NeoX model, whose halves stand side by side unless its config says otherwise."""
    bias = config.flag("attention_bias", default=True)
    is_parallel = config.flag("use_parallel_residual", default=True)
    decoder = dataclasses.replace(
        GPT_NEOX,
        qkv_bias=bias,
        output_bias=bias,
        norms=NormPlacement.PARALLEL_TWO if is_parallel else NormPlacement.PRE,
    )
    return decoder(config)


def gpt_neo(config: ConfigReader) -> ModelSpec:
    """Return a GPT-Neo model, whose local layers look back over a window."""
    return GPT_NEO(config, windows=_neo_windows)


def gpt_bigcode(config: ConfigReader) -> ModelSpec:
    """Return a GPT-BigCode model, all of whose queries share one key and value unless its config says otherwise."""
    if config.flag("add_cross_attention", default=False):
        raise config.error("add_cross_attention", "Cross attention in gpt_bigcode is not described.")
    multi_query = config.flag("multi_query", default=True)
    return GPT_BIGCODE(config, key_value_heads=1 if multi_query else None)


NEO_KINDS = ("global", "local")


def _neo_windows(config: ConfigReader, num_layers: int) -> list[int | None]:
    """Return each layer's window from lists of kinds, each with how often it is repeated."""
    window = config.size("window_size", default=NEO_WINDOW)
    types = config.items("attention_types")
    kinds = _neo_kinds(config, [[[*NEO_KINDS], NEO_REPEATS]] if types is None else types)
    if len(kinds) != num_layers:
        raise config.error("attention_types", f"'attention_types' names {len(kinds)} layers of {num_layers}.")
    return [window if kind == "local" else None for kind in kinds]


def _neo_kinds(config: ConfigReader, types: list[object]) -> list[str]:
    runs: list[list[Any]] = []
    for item in types:
        match item:
            # Compared one by one: what stands here may be anything, and not every value can be a member of a set.
            case [[*kinds], int(times)] if 0 < times <= MOST_LAYERS and all(kind in NEO_KINDS for kind in kinds):
                runs.append(kinds * times)
            case _:
                raise config.error(
                    "attention_types", "'attention_types' must list [kinds, repeats] with kinds global and local."
                )
    return list(chain.from_iterable(runs))


FAMILIES: Mapping[str, Family] = {
    "bloom": Family(
        reader=BLOOM,
        untraced=Untraced.OWN_ATTENTION,
    ),
    "gpt_bigcode": Family(
        reader=gpt_bigcode,
        parts=GPT_2_PARTS,
        tracing=Tracing(),
        own_code=OwnCode(dropout_key="resid_pdrop", dropout=0.1, score_dropout_key="attn_pdrop", score_dropout=0.1),
    ),
    "gpt_neo": Family(
        reader=gpt_neo,
        untraced=Untraced.OWN_ATTENTION,
        own_code=OwnCode(activation="gelu_new"),
    ),
    "gpt_neox": Family(
        reader=gpt_neox,
        parts=PartNames(decoder="gpt_neox", embedding="embed_in", norm="final_layer_norm"),
        tracing=Tracing(),
        own_code=OwnCode(dropout_key="hidden_dropout"),
        rotary_fraction=0.25,
    ),
    "gptj": Family(
        reader=GPT_J,
        untraced=Untraced.OWN_ATTENTION,
        own_code=OwnCode(activation="gelu_new"),
    ),
}
