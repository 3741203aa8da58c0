"""Kimi Linear: three layers of Kimi Delta Attention for each one of latent attention, with experts in all but the
first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.linear_attention import KimiDelta
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.deepseek import latent_attention
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    NUMBERED_NAMES,
    FeedForwards,
    MixtureNames,
    SharedExperts,
    Sized,
    counted,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds, named_dense_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import (
    ATTENTION,
    LAYER,
    latent_sublayer,
    layer_of,
    recurrent_sublayer,
)

# What Kimi K3 adds to Kimi Linear: residuals over blocks of layers, experts on a latent, a gate on latent attention.
KIMI_K3_KEYS = ("attn_res_block_size", "mla_use_output_gate", "routed_expert_hidden_size")
EXPERTS = MixtureNames(
    prefix=f"{LAYER}.block_sparse_moe", balancing_bias="gate.e_score_correction_bias", experts=NUMBERED_NAMES
)
# Defaults of transformers' KimiLinearConfig.
DEFAULT_LINEAR_HEADS = 32
DEFAULT_LINEAR_HEAD_DIM = 128
DEFAULT_KERNEL = 4
DEFAULT_ATTENTION_INTERVAL = 4
DEFAULT_FIRST_DENSE = 1


def kimi_linear(config: ConfigReader) -> ModelSpec:
    """Return the description of a Kimi Linear model; its latent attention has no positions.

    Source: `transformers` 5.23, modeling_kimi_linear and conversion_mapping;
    Kimi Team 2025, arXiv:2510.26692.
    """
    for key in KIMI_K3_KEYS:
        if not config.is_absent(key):
            raise config.error(key, f"'{key}' makes it a Kimi K3, whose layers are not described.")
    hidden_size = config.size("hidden_size")
    linear = config.section("linear_attn_config")
    is_dense = named_dense_layers(config, first_default=DEFAULT_FIRST_DENSE)
    kinds = _mixer_kinds(config, linear, len(is_dense))
    attention = dataclasses.replace(latent_attention(config, hidden_size), has_rotary=False)
    bias, delta = config.flag("attention_bias", default=False), _delta(config, linear, hidden_size)
    groups = config.named("n_group", "num_expert_group")
    mixture = read_mixture(
        config,
        hidden_size,
        experts=Sized("num_experts", other_keys=("num_local_experts",)),
        per_token=Sized("num_experts_per_token", other_keys=("num_experts_per_tok",)),
        shared=SharedExperts(count=counted("num_shared_experts", 1, "n_shared_experts")),
        groups=groups,
    )
    feed_forwards = FeedForwards(dense_width=config.size("intermediate_size"), mixture=mixture, names=EXPERTS)
    config.must_be("moe_layer_freq", 1)
    config.must_be("mla_use_nope", True)
    config.must_be("tie_word_embeddings", False)  # transformers has a head of its own whatever it says
    config.ignore(
        "head_dim", "hidden_act", "moe_renormalize", "moe_router_activation_func", "norm_topk_prob",
        "num_key_value_heads", "output_router_logits", "routed_scaling_factor", "topk_group", "use_grouped_topk",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
        mixer, dense = kind
        is_linear = mixer is MixerKind.LINEAR
        return layer_of(
            indices,
            hidden_size,
            recurrent_sublayer(delta, ATTENTION) if is_linear else latent_sublayer(attention, bias=bias),
            feed_forwards.sublayer(is_dense=dense),
            kind=f"dense_{mixer.value}" if dense else mixer.value,
        )

    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=blocks_by_kind(zip(kinds, is_dense, strict=True), layer),
        tied=False,
        max_position_embeddings=config.optional_size("model_max_length"),
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )


def _mixer_kinds(config: ConfigReader, linear: ConfigReader, num_layers: int) -> list[MixerKind]:
    """Return what mixes each layer's tokens; the published config counts its layers from one."""
    named = mixer_kinds(config, "layer_types", num_layers)
    attending, recurrent = linear.whole_numbers("full_attn_layers"), linear.whole_numbers("kda_layers")
    if named is not None:
        return named
    if attending is None or recurrent is None:
        return [
            MixerKind.FULL if layer and layer % DEFAULT_ATTENTION_INTERVAL == 0 else MixerKind.LINEAR
            for layer in range(num_layers)
        ]
    if sorted((*attending, *recurrent)) != list(range(1, num_layers + 1)):
        raise linear.error(
            "kda_layers", f"'kda_layers' and 'full_attn_layers' must name each of the layers 1 to {num_layers} once."
        )
    return [MixerKind.FULL if layer + 1 in attending else MixerKind.LINEAR for layer in range(num_layers)]


def _delta(config: ConfigReader, linear: ConfigReader, hidden_size: int) -> KimiDelta:
    """Return the sizes of the delta attention, from the published config's section or the names of transformers."""
    heads = config.size("linear_num_heads", default=DEFAULT_LINEAR_HEADS)
    head_dim = config.size("linear_head_dim", default=DEFAULT_LINEAR_HEAD_DIM)
    kernel = config.size("linear_conv_kernel_dim", default=DEFAULT_KERNEL)
    return KimiDelta(
        hidden_size=hidden_size,
        heads=linear.size("num_heads", default=heads),
        head_dim=linear.size("head_dim", default=head_dim),
        kernel=linear.size("short_conv_kernel_size", default=kernel),
    )


FAMILIES: Mapping[str, Family] = {
    "kimi_linear": Family(
        reader=kimi_linear,
        needs_remote_code=True,
    ),
}
