"""MiniMax-Text-01: lightning attention with one layer of softmax attention in eight, experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.linear_attention import LightningAttention
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    NUMBERED_NAMES,
    MixtureNames,
    Sized,
    mixture_sublayer,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds, number_of_layers
from plimsoll.planners.families.reading.sublayers import (
    ATTENTION,
    LAYER,
    attention_sublayer,
    layer_of,
    recurrent_sublayer,
)

# The default of transformers' MiniMaxConfig.
DEFAULT_KEY_VALUE_HEADS = 8


def minimax(config: ConfigReader) -> ModelSpec:
    """Return the description of a MiniMax model, whose residual stream is the normed input of each half.

    Source: `transformers` 5.23, modeling_minimax; MiniMax 2025, arXiv:2501.08313.
    """
    attention = read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    hidden_size, num_layers = attention.hidden_size, number_of_layers(config)
    mixture = read_mixture(
        config,
        hidden_size,
        experts=Sized("num_local_experts", 8),
        per_token=Sized("num_experts_per_tok", 2),
        width=Sized("intermediate_size"),
    )
    lightning = LightningAttention(hidden_size=hidden_size, heads=attention.heads, head_dim=attention.head_dim)
    # Without a list every other layer, beginning with the first, attends to everything.
    kinds = mixer_kinds(config, "layer_types", num_layers) or [
        MixerKind.LINEAR if index % 2 else MixerKind.FULL for index in range(num_layers)
    ]
    config.ignore(
        "block_size", "full_attn_alpha_factor", "full_attn_beta_factor", "hidden_act", "linear_attn_alpha_factor",
        "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor", "output_router_logits",
        "router_aux_loss_coef", "router_jitter_noise", "sliding_window",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: MixerKind) -> Block:
        is_linear = kind is MixerKind.LINEAR
        mixer = recurrent_sublayer(lightning, ATTENTION) if is_linear else attention_sublayer(attention)
        names = MixtureNames(prefix=f"{LAYER}.block_sparse_moe", experts=NUMBERED_NAMES)
        return layer_of(indices, hidden_size, mixer, mixture_sublayer(mixture, names), kind=kind.value)

    return decoder_model(config, attention=attention, mixture=mixture, layers=blocks_by_kind(kinds, layer))


FAMILIES: Mapping[str, Family] = {
    "minimax": Family(reader=minimax),
}
