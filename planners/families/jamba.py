"""Jamba: Mamba layers with one of attention in eight, and experts in every second layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.mamba import Mamba
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.mamba import step_rank
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import FeedForwards, MixtureNames, Sized, read_mixture
from plimsoll.planners.families.reading.layer_kinds import MixerKind, number_of_layers
from plimsoll.planners.families.reading.sublayers import LAYER, attention_sublayer, layer_of, recurrent_sublayer

FEED_FORWARD = f"{LAYER}.feed_forward"
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


def jamba(config: ConfigReader) -> ModelSpec:
    """Return the description of a Jamba model; its attention has no positions.

    Source: `transformers` 5.23, modeling_jamba; Lieber et al. 2024, arXiv:2403.19887.
    """
    attention = dataclasses.replace(
        read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS), has_rotary=False
    )
    hidden_size = attention.hidden_size
    mamba, mixture = _mamba(config, hidden_size), _mixture(config, hidden_size)
    feed_forwards = FeedForwards(
        dense_width=mixture.intermediate_size,
        mixture=mixture,
        names=MixtureNames(prefix=FEED_FORWARD, router="router"),
        dense_prefix=FEED_FORWARD,
    )
    kinds = _kinds(config, has_mixtures=mixture.experts > 1)
    config.ignore("hidden_act", "mamba_inner_layernorms", "num_logits_to_keep", "output_router_logits",
                  "router_aux_loss_coef", "sliding_window", "use_associative_scan", "use_mamba_kernels",
                  "use_mambapy")  # fmt: skip

    def layer(indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
        mixer, has_experts = kind
        is_linear = mixer is MixerKind.LINEAR
        return layer_of(
            indices,
            hidden_size,
            recurrent_sublayer(mamba, f"{LAYER}.mamba") if is_linear else attention_sublayer(attention),
            feed_forwards.sublayer(is_dense=not has_experts),
            kind=f"{mixer.value}_experts" if has_experts else mixer.value,
            norms=("input_layernorm", "pre_ff_layernorm"),
        )

    return decoder_model(
        config,
        attention=attention,
        mixture=mixture if any(has_experts for _, has_experts in kinds) else None,
        layers=blocks_by_kind(kinds, layer),
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
    """Return the experts; with a single one every layer is dense, and how many are chosen is without effect."""
    if config.size("num_experts", default=DEFAULT_EXPERTS) == 1:
        config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
        width = config.size("intermediate_size")
        return MixtureOfExperts(hidden_size=hidden_size, intermediate_size=width, experts=1, experts_per_token=1)
    return read_mixture(
        config,
        hidden_size,
        experts=Sized("num_experts", DEFAULT_EXPERTS),
        per_token=Sized("num_experts_per_tok", DEFAULT_EXPERTS_PER_TOKEN),
        width=Sized("intermediate_size"),
    )


def _kinds(config: ConfigReader, *, has_mixtures: bool) -> list[tuple[MixerKind, bool]]:
    num_layers = number_of_layers(config)
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
