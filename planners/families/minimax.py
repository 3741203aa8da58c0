"""MiniMax-Text-01: lightning attention with one layer of softmax attention in eight, experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    mixture_half,
    norm_weights,
    recurrent_half,
)
from plimsoll.planners.architecture.linear_attention import LightningAttention
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, expert_weights, router_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import read_attention
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds
from plimsoll.planners.families.reading.mixtures import checked_experts_per_token

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("w1", "w3", "w2")
# Defaults of transformers' MiniMaxConfig.
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_EXPERTS = 8
DEFAULT_EXPERTS_PER_TOKEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    attention: GroupedAttention
    lightning: LightningAttention
    mixture: MixtureOfExperts

    def block(self, indices: tuple[int, ...], mixer: MixerKind) -> Block:
        """Return the layers at `indices`, whose residual stream is the normed input of each half."""
        hidden_size, recurrence, prefix = self.attention.hidden_size, self.lightning.mixer(), f"{LAYER}.self_attn"
        is_linear = mixer is MixerKind.LINEAR
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=recurrent_half(recurrence) if is_linear else attention_half(self.attention),
            feed_forward=mixture_half(self.mixture),
            kv=recurrence.kv_state() if is_linear else self.attention.kv_state(),
            kind=mixer.value,
            weights=(
                *(
                    self.lightning.weights(prefix)
                    if is_linear
                    else separate_projections(prefix, self.attention, qkv_bias=False, output_bias=False)
                ),
                router_weight(f"{LAYER}.block_sparse_moe.gate.weight", self.mixture),
                *expert_weights(f"{LAYER}.block_sparse_moe.experts.{{expert}}", self.mixture, names=EXPERT_NAMES),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )


def minimax(config: ConfigReader) -> ModelSpec:
    """Return the description of a MiniMax model with lightning attention.

    Source: `transformers` 5.23, modeling_minimax; MiniMax 2025, arXiv:2501.08313.
    """
    attention = read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    experts = config.size("num_local_experts", default=DEFAULT_EXPERTS)
    chosen = config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    mixture = MixtureOfExperts(
        hidden_size=attention.hidden_size,
        intermediate_size=config.size("intermediate_size"),
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
    )
    layer = _Layer(
        attention=attention,
        lightning=LightningAttention(
            hidden_size=attention.hidden_size, heads=attention.heads, head_dim=attention.head_dim
        ),
        mixture=mixture,
    )
    # Without a list every other layer, beginning with the first, attends to everything.
    kinds = mixer_kinds(config, "layer_types", num_layers) or [
        MixerKind.LINEAR if index % 2 else MixerKind.FULL for index in range(num_layers)
    ]
    config.ignore(
        "block_size", "full_attn_alpha_factor", "full_attn_beta_factor", "hidden_act", "linear_attn_alpha_factor",
        "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor", "output_router_logits",
        "router_aux_loss_coef", "router_jitter_noise", "sliding_window",
    )  # fmt: skip
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(kinds, layer.block),
        tied=config.flag("tie_word_embeddings", default=False),
    )


FAMILIES: Mapping[str, Family] = {
    "minimax": Family(reader=minimax),
}
