"""Qwen3-Next and Qwen3.5: three layers of the gated delta rule for each one of gated attention."""

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
from plimsoll.planners.architecture.linear_attention import GatedDelta
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    expert_weights,
    fused_expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.qwen3_vl import qwen3_5_tower, qwen3_wrapper
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import QueryKeyNorm, query_key_norm_weights, read_attention
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds
from plimsoll.planners.families.reading.mixtures import DenseLayers, checked_experts_per_token, dense_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "model.layers.{layer}"
EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj")
FUSED_NAMES = (f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj")
# Defaults of transformers' Qwen3NextConfig and Qwen3_5TextConfig, which agree on them.
DEFAULT_HEAD_DIM = 256
DEFAULT_KERNEL = 4
DEFAULT_LINEAR_HEAD_DIM = 128
DEFAULT_LINEAR_KEY_HEADS = 16
DEFAULT_LINEAR_VALUE_HEADS = 32
DEFAULT_ATTENTION_INTERVAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenHybrid:
    """What differs between the families; defaults are Qwen3.5's.

    Qwen3.5's published experts are one tensor a layer, Qwen3-Next's one an expert.
    """

    is_grouped: bool = False
    has_experts: bool = False
    has_fused_experts: bool = False
    dense_layers: DenseLayers = DenseLayers.NONE
    key_value_heads_default: int = 4

    def __call__(self, config: ConfigReader) -> ModelSpec:
        """Return the description of a text model of this form."""
        return _qwen_hybrid(config, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    family: QwenHybrid
    attention: GroupedAttention
    delta: GatedDelta
    mixture: MixtureOfExperts | None
    intermediate_size: int
    attention_bias: bool

    def block(self, indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
        """Return the layers at `indices`; `kind` is what mixes their tokens and whether they are dense."""
        mixer, dense = kind
        hidden_size, recurrence = self.attention.hidden_size, self.delta.mixer()
        is_linear = mixer is MixerKind.LINEAR
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=recurrent_half(recurrence) if is_linear else attention_half(self.attention),
            feed_forward=(
                feed_forward_half(hidden_size, self.intermediate_size, gated=True)
                if dense or self.mixture is None
                else mixture_half(self.mixture)
            ),
            kv=recurrence.kv_state() if is_linear else self.attention.kv_state(),
            kind=mixer.value,
            weights=(
                *(self.delta.weights(f"{LAYER}.linear_attn") if is_linear else self._attention_weights()),
                *self._feed_forward_weights(dense),
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.post_attention_layernorm", hidden_size),
            ),
        )

    def _attention_weights(self) -> tuple[Weight, ...]:
        prefix, bias = f"{LAYER}.self_attn", self.attention_bias
        return (
            *separate_projections(prefix, self.attention, qkv_bias=bias, output_bias=bias),
            *query_key_norm_weights(prefix, self.attention, QueryKeyNorm.HEAD),
        )

    def _feed_forward_weights(self, dense: bool) -> tuple[Weight, ...]:
        prefix, mixture = f"{LAYER}.mlp", self.mixture
        if dense or mixture is None:
            return gated_weights(prefix, self.attention.hidden_size, self.intermediate_size)
        experts = (
            fused_expert_weights(FUSED_NAMES, mixture, FusedExperts.OUTPUT_FIRST)
            if self.family.has_fused_experts
            else expert_weights(f"{prefix}.experts.{{expert}}", mixture, names=EXPERT_NAMES)
        )
        return (
            router_weight(f"{prefix}.gate.weight", mixture),
            *experts,
            *shared_expert_weights(f"{prefix}.shared_expert", mixture),
            Weight(name=f"{prefix}.shared_expert_gate.weight", shape=(1, mixture.hidden_size), part=Part.ROUTER),
        )


def _qwen_hybrid(config: ConfigReader, family: QwenHybrid) -> ModelSpec:
    """Return the description of a Qwen3-Next- or Qwen3.5-like text model.

    Source: `transformers` 5.23, modeling_qwen3_next, _qwen3_5 and _qwen3_5_moe.
    """
    attention = read_attention(
        config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=family.key_value_heads_default
    )
    mixture = _mixture(config, attention.hidden_size) if family.has_experts else None
    is_dense = dense_layers(config, family.dense_layers) if family.has_experts else [True] * _num_layers(config)
    layer = _Layer(
        family=family,
        attention=dataclasses.replace(attention, has_output_gate=True),
        delta=_delta(config, attention.hidden_size, is_grouped=family.is_grouped),
        mixture=mixture,
        intermediate_size=config.size("intermediate_size") if any(is_dense) else 0,
        attention_bias=config.flag("attention_bias", default=False),
    )
    config.must_be("attn_output_gate", True)
    config.must_be("output_gate_type", "swish")  # the delta rule's gate; the attention's is a sigmoid
    config.ignore(
        "decoder_sparse_step", "hidden_act", "intermediate_size", "mamba_ssm_dtype",
        "mlp_only_layers", "mtp_use_dedicated_embeddings", "norm_topk_prob", "output_router_logits",
        "partial_rotary_factor", "router_aux_loss_coef", "use_sliding_window", "sliding_window",
    )  # fmt: skip
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token if mixture is not None else 0,
        ),
        layers=blocks_by_kind(zip(_mixer_kinds(config), is_dense, strict=True), layer.block),
        tied=config.flag("tie_word_embeddings", default=False),
        assumptions=multi_token_assumptions(config, "mtp_num_hidden_layers"),
    )


def _num_layers(config: ConfigReader) -> int:
    return config.size("num_hidden_layers", most=MOST_LAYERS)


def _mixer_kinds(config: ConfigReader) -> list[MixerKind]:
    """Return what mixes each layer's tokens; without `layer_types` every fourth layer attends to everything."""
    num_layers = _num_layers(config)
    interval = config.size("full_attention_interval", default=DEFAULT_ATTENTION_INTERVAL)
    return mixer_kinds(config, "layer_types", num_layers) or [
        MixerKind.LINEAR if (layer + 1) % interval else MixerKind.FULL for layer in range(num_layers)
    ]


def _delta(config: ConfigReader, hidden_size: int, *, is_grouped: bool) -> GatedDelta:
    key_heads = config.size("linear_num_key_heads", default=DEFAULT_LINEAR_KEY_HEADS)
    value_heads = config.size("linear_num_value_heads", default=DEFAULT_LINEAR_VALUE_HEADS)
    config.must_divide("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    return GatedDelta(
        hidden_size=hidden_size,
        key_heads=key_heads,
        value_heads=value_heads,
        key_head_dim=config.size("linear_key_head_dim", default=DEFAULT_LINEAR_HEAD_DIM),
        value_head_dim=config.size("linear_value_head_dim", default=DEFAULT_LINEAR_HEAD_DIM),
        kernel=config.size("linear_conv_kernel_dim", default=DEFAULT_KERNEL),
        is_grouped=is_grouped,
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    experts, chosen = config.size("num_experts"), config.size("num_experts_per_tok")
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("moe_intermediate_size"),
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
        shared_intermediate_size=config.size("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )


FAMILIES: Mapping[str, Family] = {
    "qwen3_next": Family(
        reader=QwenHybrid(
            is_grouped=True, has_experts=True, dense_layers=DenseLayers.BETWEEN_STEPS, key_value_heads_default=2
        ),
        untraced=Untraced.LOOPS,
        rotary_fraction=0.25,
    ),
    "qwen3_5_text": Family(
        reader=QwenHybrid(),
        untraced=Untraced.LOOPS,
        rotary_fraction=0.25,
    ),
    "qwen3_5_moe_text": Family(
        reader=QwenHybrid(has_experts=True, has_fused_experts=True, key_value_heads_default=2),
        untraced=Untraced.LOOPS,
        rotary_fraction=0.25,
    ),
    "qwen3_5": Family(
        reader=qwen3_wrapper("qwen3_5_text", qwen3_5_tower),
        untraced=Untraced.LOOPS,
        rotary_fraction=0.25,
    ),
    "qwen3_5_moe": Family(
        reader=qwen3_wrapper("qwen3_5_moe_text", qwen3_5_tower),
        untraced=Untraced.LOOPS,
        rotary_fraction=0.25,
    ),
}
