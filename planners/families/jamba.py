"""Jamba: Mamba layers with one of attention in eight, and experts in every second layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
    recurrent_half,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.mamba import Mamba
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts, expert_weights, router_weight
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.mamba import step_rank
from plimsoll.planners.families.reading.assembly import DecoderNames, DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import read_attention
from plimsoll.planners.families.reading.layer_kinds import MixerKind
from plimsoll.planners.families.reading.mixtures import checked_experts_per_token

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")
# Defaults of transformers' JambaConfig.
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_EXPERTS = 16
DEFAULT_EXPERTS_PER_TOKEN = 2
DEFAULT_EXPERT_PERIOD = 2
DEFAULT_EXPERT_OFFSET = 1
DEFAULT_ATTENTION_PERIOD = 8
DEFAULT_ATTENTION_OFFSET = 4
DEFAULT_STATE_SIZE = 16
DEFAULT_KERNEL = 4
DEFAULT_EXPAND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    attention: GroupedAttention
    mamba: Mamba
    mixture: MixtureOfExperts

    def block(self, indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
        """Return the layers at `indices`; `kind` is what mixes their tokens and whether they have experts."""
        mixer, has_experts = kind
        hidden_size, recurrence = self.attention.hidden_size, self.mamba.mixer()
        is_linear = mixer is MixerKind.LINEAR
        mixer_weights = (
            self.mamba.weights(f"{LAYER}.mamba")
            if is_linear
            else separate_projections(f"{LAYER}.self_attn", self.attention, qkv_bias=False, output_bias=False)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=recurrent_half(recurrence) if is_linear else attention_half(self.attention),
            feed_forward=(
                mixture_half(self.mixture)
                if has_experts
                else feed_forward_half(hidden_size, self.mixture.intermediate_size, gated=True)
            ),
            kv=recurrence.kv_state() if is_linear else self.attention.kv_state(),
            kind=f"{mixer.value}_experts" if has_experts else mixer.value,
            weights=(
                *mixer_weights,
                *self._feed_forward_weights(has_experts),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.pre_ff_layernorm", hidden_size),
            ),
        )

    def _feed_forward_weights(self, has_experts: bool) -> tuple[Weight, ...]:
        prefix, mixture = f"{LAYER}.feed_forward", self.mixture
        if not has_experts:
            return gated_weights(prefix, mixture.hidden_size, mixture.intermediate_size)
        return (
            router_weight(f"{prefix}.router.weight", mixture),
            *expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES),
        )


def jamba(config: ConfigReader) -> ModelSpec:
    """Return the description of a Jamba model; its attention has no positions.

    Source: `transformers` 5.23, modeling_jamba; Lieber et al. 2024, arXiv:2403.19887.
    """
    attention = dataclasses.replace(
        read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS), has_rotary=False
    )
    layer = _Layer(
        attention=attention,
        mamba=_mamba(config, attention.hidden_size),
        mixture=_mixture(config, attention.hidden_size),
    )
    kinds = _kinds(config, has_mixtures=layer.mixture.experts > 1)
    config.ignore("hidden_act", "mamba_inner_layernorms", "num_logits_to_keep", "output_router_logits",
                  "router_aux_loss_coef", "sliding_window", "use_associative_scan", "use_mamba_kernels",
                  "use_mambapy")  # fmt: skip
    has_experts = any(experts for _, experts in kinds)
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=layer.mixture.experts_per_token if has_experts else 0,
        ),
        layers=blocks_by_kind(kinds, layer.block),
        tied=config.flag("tie_word_embeddings", default=False),
        names=DecoderNames(final_norm="model.final_layernorm"),
    )


def _mamba(config: ConfigReader, hidden_size: int) -> Mamba:
    return Mamba(
        hidden_size=hidden_size,
        inner_width=config.size("mamba_expand", default=DEFAULT_EXPAND) * hidden_size,
        state_size=config.size("mamba_d_state", default=DEFAULT_STATE_SIZE),
        kernel=config.size("mamba_d_conv", default=DEFAULT_KERNEL),
        step_rank=step_rank(config, "mamba_dt_rank", hidden_size),
        projection_bias=config.flag("mamba_proj_bias", default=False),
        convolution_bias=config.flag("mamba_conv_bias", default=True),
        has_selection_norms=True,
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    experts = config.size("num_experts", default=DEFAULT_EXPERTS)
    chosen = config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        experts=experts,
        # With a single expert every layer is dense, and the number of chosen ones is without effect.
        experts_per_token=(
            checked_experts_per_token(config, "num_experts_per_tok", chosen, experts) if experts > 1 else 1
        ),
    )


def _kinds(config: ConfigReader, *, has_mixtures: bool) -> list[tuple[MixerKind, bool]]:
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    attends = _at_every(config, "attn_layer", DEFAULT_ATTENTION_PERIOD, DEFAULT_ATTENTION_OFFSET)
    mixes = _at_every(config, "expert_layer", DEFAULT_EXPERT_PERIOD, DEFAULT_EXPERT_OFFSET)
    return [
        (
            MixerKind.FULL if layer % attends[0] == attends[1] else MixerKind.LINEAR,
            has_mixtures and layer % mixes[0] == mixes[1],
        )
        for layer in range(num_layers)
    ]


def _at_every(config: ConfigReader, key: str, period_default: int, offset_default: int) -> tuple[int, int]:
    """Return how many layers lie from one such layer to the next, and the index of the first."""
    period = config.size(f"{key}_period", default=period_default)
    offset = config.count(f"{key}_offset", default=offset_default)
    if offset >= period:
        raise config.error(f"{key}_offset", f"'{key}_offset' ({offset}) must be less than '{key}_period' ({period}).")
    return period, offset


FAMILIES: Mapping[str, Family] = {
    "jamba": Family(
        reader=jamba,
        untraced=Untraced.LOOPS,
    ),
}
