"""Kimi Linear: three layers of Kimi Delta Attention for each one of latent attention, with experts in all but the
first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import (
    decoder_layer,
    feed_forward_half,
    latent_attention_half,
    mixture_half,
    norm_weights,
    recurrent_half,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.latent_attention import LatentAttention, latent_weights
from plimsoll.planners.architecture.linear_attention import KimiDelta
from plimsoll.planners.architecture.mixture_of_experts import (
    MixtureOfExperts,
    expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.deepseek import latent_attention
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds
from plimsoll.planners.families.reading.mixtures import balancing_bias_weight, checked_experts_per_token
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"
# What Kimi K3 adds to Kimi Linear: residuals over blocks of layers, experts on a latent, a gate on latent attention.
KIMI_K3_KEYS = ("attn_res_block_size", "mla_use_output_gate", "routed_expert_hidden_size")
EXPERT_NAMES = ("w1", "w3", "w2")
# Defaults of transformers' KimiLinearConfig.
DEFAULT_LINEAR_HEADS = 32
DEFAULT_LINEAR_HEAD_DIM = 128
DEFAULT_KERNEL = 4
DEFAULT_ATTENTION_INTERVAL = 4
DEFAULT_FIRST_DENSE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    attention: LatentAttention
    attention_bias: bool
    delta: KimiDelta
    mixture: MixtureOfExperts
    intermediate_size: int

    def block(self, indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
        """Return the layers at `indices`; `kind` is what mixes their tokens and whether they are dense."""
        mixer, dense = kind
        hidden_size, recurrence, prefix = self.attention.hidden_size, self.delta.mixer(), f"{LAYER}.self_attn"
        is_linear = mixer is MixerKind.LINEAR
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=recurrent_half(recurrence) if is_linear else latent_attention_half(self.attention),
            feed_forward=(
                feed_forward_half(hidden_size, self.intermediate_size, gated=True)
                if dense
                else mixture_half(self.mixture)
            ),
            kv=recurrence.kv_state() if is_linear else self.attention.kv_state(),
            kind=f"dense_{mixer.value}" if dense else mixer.value,
            weights=(
                *(
                    self.delta.weights(prefix)
                    if is_linear
                    else latent_weights(prefix, self.attention, bias=self.attention_bias)
                ),
                *self._feed_forward_weights(dense),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )

    def _feed_forward_weights(self, dense: bool) -> tuple[Weight, ...]:
        prefix, mixture = f"{LAYER}.block_sparse_moe", self.mixture
        if dense:
            return gated_weights(f"{LAYER}.mlp", mixture.hidden_size, self.intermediate_size)
        return (
            router_weight(f"{prefix}.gate.weight", mixture),
            balancing_bias_weight(f"{prefix}.gate.e_score_correction_bias", mixture),
            *expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES),
            *shared_expert_weights(f"{prefix}.shared_experts", mixture),
        )


def kimi_linear(config: ConfigReader) -> ModelSpec:
    """Return the description of a Kimi Linear model; its latent attention has no positions.

    Source: `transformers` 5.23, modeling_kimi_linear and conversion_mapping;
    Kimi Team 2025, arXiv:2510.26692.
    """
    for key in KIMI_K3_KEYS:
        if not config.is_absent(key):
            raise config.error(key, f"'{key}' makes it a Kimi K3, whose layers are not described.")
    hidden_size = config.size("hidden_size")
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    linear = config.section("linear_attn_config")
    kinds = _mixer_kinds(config, linear, num_layers)
    is_dense = _dense_layers(config, num_layers)
    layer = _Layer(
        attention=dataclasses.replace(latent_attention(config, hidden_size), has_rotary=False),
        attention_bias=config.flag("attention_bias", default=False),
        delta=_delta(config, linear, hidden_size),
        mixture=_mixture(config, hidden_size),
        intermediate_size=config.size("intermediate_size"),
    )
    config.must_be("moe_layer_freq", 1)
    config.must_be("mla_use_nope", True)
    config.must_be("tie_word_embeddings", False)  # transformers has a head of its own whatever it says
    config.ignore(
        "head_dim", "hidden_act", "moe_renormalize", "moe_router_activation_func", "n_group", "norm_topk_prob",
        "num_expert_group", "num_key_value_heads", "output_router_logits", "routed_scaling_factor", "topk_group",
        "use_grouped_topk",
    )  # fmt: skip
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=layer.attention.heads,
            key_value_heads=layer.attention.heads,
            experts_per_token=layer.mixture.experts_per_token,
        ),
        layers=blocks_by_kind(zip(kinds, is_dense, strict=True), layer.block),
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


def _dense_layers(config: ConfigReader, num_layers: int) -> list[bool]:
    names = config.strings("mlp_layer_types")
    config.must_be("mlp_layer_types", "dense", "sparse")
    first = config.count("first_k_dense_replace", default=DEFAULT_FIRST_DENSE)
    if names is None:
        return [layer < first for layer in range(num_layers)]
    if len(names) != num_layers:
        raise config.error("mlp_layer_types", f"'mlp_layer_types' names {len(names)} layers of {num_layers}.")
    return [name == "dense" for name in names]


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


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    width = config.size("moe_intermediate_size")
    experts = config.size(config.named("num_experts", "num_local_experts"))
    chosen_key = config.named("num_experts_per_token", "num_experts_per_tok")
    shared = config.count(config.named("num_shared_experts", "n_shared_experts"), default=1)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=width,
        experts=experts,
        experts_per_token=checked_experts_per_token(config, chosen_key, config.size(chosen_key), experts),
        shared_intermediate_size=shared * width,
    )


FAMILIES: Mapping[str, Family] = {
    "kimi_linear": Family(
        reader=kimi_linear,
        needs_remote_code=True,
    ),
}
