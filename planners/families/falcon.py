"""Falcon in its three layouts: multi-query with one norm (7B), grouped with two (40B, 180B), and the first (RW)."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.gpt import GptDecoder, GptKeys


def falcon(config: ConfigReader) -> ModelSpec:
    """Return the description of a Falcon model.

    The fused matrix of queries, keys and values is ordered by key-value group
    in the new architecture and by head in the oldest.

    Source: `transformers` 5.23, modeling_falcon.
    """
    is_new = config.flag("new_decoder_architecture", default=False)
    is_multi_query = config.flag("multi_query", default=True)
    heads = config.size("num_attention_heads")
    key_value_heads = heads
    if is_new:
        key_value_heads = config.size("num_kv_heads", default=heads)
        config.must_divide("num_kv_heads", key_value_heads, "num_attention_heads", heads)
    elif is_multi_query:
        key_value_heads = 1
    norm_names, norms = _norms(config, is_new=is_new)
    bias = config.flag("bias", default=False)
    decoder = GptDecoder(
        keys=GptKeys(
            hidden=("n_embed", "hidden_size"),
            layers=("num_hidden_layers",),
            heads=("num_attention_heads",),
            inner=("ffn_hidden_size",),
            positions=("max_position_embeddings",),
            positions_default=2048,
        ),
        query_key_value=("self_attention.query_key_value",),
        output="self_attention.dense",
        feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        norm_names=norm_names,
        norms=norms,
        names=DecoderNames(embedding="transformer.word_embeddings.weight", final_norm="transformer.ln_f"),
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=bias,
        has_rotary=not config.flag("alibi", default=False),
        ignored=(
            "activation",
            "apply_residual_connection_post_layernorm",
            "hidden_dropout",
            "num_kv_heads",
            "num_ln_in_parallel_attn",
        ),
    )
    return decoder(config, key_value_heads=key_value_heads)


def _norms(config: ConfigReader, *, is_new: bool) -> tuple[tuple[str, ...], NormPlacement]:
    """Return the norms of a layer and where they stand."""
    has_two_norms = config.size("num_ln_in_parallel_attn", default=2 if is_new else 1) == 2
    is_parallel = config.flag("parallel_attn", default=True)
    if not is_parallel:
        if is_new:
            raise config.error("parallel_attn", "The new decoder architecture is always parallel.")
        return ("input_layernorm", "post_attention_layernorm"), NormPlacement.PRE
    if has_two_norms:
        return ("ln_attn", "ln_mlp"), NormPlacement.PARALLEL_TWO
    return ("input_layernorm",), NormPlacement.PARALLEL


FAMILIES: Mapping[str, Family] = {
    "falcon": Family(
        reader=falcon,
        untraced=Untraced.OWN_ATTENTION,
    ),
}
