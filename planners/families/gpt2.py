"""GPT-2: learned positions, LayerNorm, a fused QKV matrix and a plain GELU feed-forward."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import feed_forward_column, feed_forward_row
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.family import Family, PartNames, Tracing
from plimsoll.planners.families.reading.assembly import DecoderNames, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.own_code import OwnCode

GPT_2_PARTS = PartNames(decoder="transformer", embedding="wte", layers="h", norm="ln_f")
# Defaults of transformers' GPT2Config.
DEFAULT_POSITIONS = 1024


def gpt2(config: ConfigReader) -> ModelSpec:
    """Return the description of a GPT-2 model; its Conv1D matrices are [in, out].

    Source: `transformers` 5.23, modeling_gpt2.
    """
    hidden_size = config.size("n_embd")
    heads = config.size("n_head")
    config.must_divide("n_head", heads, "n_embd", hidden_size)
    num_layers = config.size("n_layer", most=MOST_LAYERS)
    positions = config.size("n_positions", default=DEFAULT_POSITIONS)
    intermediate_size = config.size("n_inner", default=4 * hidden_size)
    tied = config.flag("tie_word_embeddings", default=True)
    config.ignore(
        "activation_function", "attn_pdrop", "embd_pdrop", "n_ctx", "reorder_and_upcast_attn", "resid_pdrop",
        "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    attention = GroupedAttention(
        hidden_size=hidden_size,
        heads=heads,
        key_value_heads=heads,
        head_dim=hidden_size // heads,
        has_rotary=False,
    )
    layers = decoder_layer(
        layers=tuple(range(num_layers)),
        hidden_size=hidden_size,
        mixer=attention_half(attention),
        feed_forward=feed_forward_half(hidden_size, intermediate_size, gated=False),
        kv=attention.kv_state(),
        weights=_layer_weights("transformer.h.{layer}", attention, intermediate_size),
    )
    return decoder_model(
        config,
        attention=attention,
        layers=(layers,),
        tied=tied,
        names=DecoderNames(embedding="transformer.wte.weight", final_norm="transformer.ln_f"),
        norm_bias=True,
        max_position_embeddings=positions,
        other_embeddings=(Weight(name="transformer.wpe.weight", shape=(positions, hidden_size), part=Part.EMBEDDING),),
    )


def _layer_weights(prefix: str, attention: GroupedAttention, intermediate_size: int) -> tuple[Weight, ...]:
    hidden_size, heads = attention.hidden_size, attention.heads
    return (
        *norm_weights(f"{prefix}.ln_1", hidden_size, bias=True),
        Weight(
            name=f"{prefix}.attn.c_attn.weight", shape=(hidden_size, 3 * hidden_size), part=Part.ATTENTION,
            split=Split.COLUMN, dim=1, units=heads, is_linear=True,
        ),
        Weight(
            name=f"{prefix}.attn.c_attn.bias", shape=(3 * hidden_size,), part=Part.ATTENTION,
            split=Split.COLUMN, dim=0, units=heads,
        ),
        Weight(
            name=f"{prefix}.attn.c_proj.weight", shape=(hidden_size, hidden_size), part=Part.ATTENTION,
            split=Split.ROW, dim=0, units=heads, is_linear=True,
        ),
        Weight(name=f"{prefix}.attn.c_proj.bias", shape=(hidden_size,), part=Part.ATTENTION),
        *norm_weights(f"{prefix}.ln_2", hidden_size, bias=True),
        feed_forward_column(f"{prefix}.mlp.c_fc.weight", (hidden_size, intermediate_size), dim=1, is_linear=True),
        feed_forward_column(f"{prefix}.mlp.c_fc.bias", (intermediate_size,), dim=0),
        feed_forward_row(f"{prefix}.mlp.c_proj.weight", (intermediate_size, hidden_size), dim=0),
        Weight(name=f"{prefix}.mlp.c_proj.bias", shape=(hidden_size,), part=Part.FEED_FORWARD),
    )  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        reader=gpt2,
        parts=GPT_2_PARTS,
        tracing=Tracing(has_transposed_matrices=True),
        own_code=OwnCode(
            activation="gelu_new",
            dropout_key="resid_pdrop",
            dropout=0.1,
            score_dropout_key="attn_pdrop",
            score_dropout=0.1,
            softmax_in_fp32=False,
        ),
    ),
}
