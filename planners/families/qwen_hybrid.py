"""Qwen3-Next and Qwen3.5: three layers of the gated delta rule for each one of gated attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import with_norms_scaling_in_fp32
from plimsoll.planners.architecture.linear_attention import GatedDelta
from plimsoll.planners.architecture.mixture_of_experts import FusedExperts, MixtureOfExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.families.family import Family, Tracing, Untraced
from plimsoll.planners.families.qwen3_vl import qwen3_5_tower, qwen3_wrapper
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, read_attention, with_query_key_norm
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import (
    MixtureNames,
    SharedExperts,
    Sized,
    mixture_sublayer,
    read_mixture,
)
from plimsoll.planners.families.reading.layer_kinds import (
    DenseLayers,
    MixerKind,
    dense_layers,
    every_so_many,
    mixer_kinds,
    number_of_layers,
)
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.own_code import OwnCode
from plimsoll.planners.families.reading.sublayers import (
    LAYER,
    attention_sublayer,
    gated_sublayer,
    layer_of,
    recurrent_sublayer,
)

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
        """Return the description of a text model of this form.

        Source: `transformers` 5.23, modeling_qwen3_next, _qwen3_5 and _qwen3_5_moe.
        """
        plain = read_attention(
            config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=self.key_value_heads_default
        )
        attention = dataclasses.replace(with_query_key_norm(plain, QueryKeyNorm.HEAD), has_output_gate=True)
        hidden_size = attention.hidden_size
        mixture = _mixture(config, hidden_size) if self.has_experts else None
        is_dense = dense_layers(config, self.dense_layers) if mixture else [True] * number_of_layers(config)
        delta = _delta(config, hidden_size, is_grouped=self.is_grouped)
        dense_width = config.size("intermediate_size") if any(is_dense) else 0
        bias = config.flag("attention_bias", default=False)
        names = MixtureNames(
            fused=FusedExperts.OUTPUT_FIRST if self.has_fused_experts else None,
            shared="shared_expert",
            shared_gate="shared_expert_gate",
        )
        config.must_be("attn_output_gate", True)
        config.must_be("output_gate_type", "swish")  # the delta rule's gate; the attention's is a sigmoid
        config.ignore(
            "decoder_sparse_step", "hidden_act", "intermediate_size", "mamba_ssm_dtype",
            "mlp_only_layers", "mtp_use_dedicated_embeddings", "norm_topk_prob", "output_router_logits",
            "partial_rotary_factor", "router_aux_loss_coef", "use_sliding_window", "sliding_window",
        )  # fmt: skip

        def layer(indices: tuple[int, ...], kind: tuple[MixerKind, bool]) -> Block:
            mixer, dense = kind
            if mixer is MixerKind.LINEAR:
                mixing = recurrent_sublayer(delta, f"{LAYER}.linear_attn")
            else:
                mixing = attention_sublayer(attention, bias=bias, norm=QueryKeyNorm.HEAD)
            if dense or mixture is None:
                feed_forward = gated_sublayer(hidden_size, dense_width)
            else:
                feed_forward = mixture_sublayer(mixture, names)
            return layer_of(indices, hidden_size, mixing, feed_forward, kind=mixer.value)

        model = decoder_model(
            config,
            attention=attention,
            mixture=mixture,
            layers=blocks_by_kind(zip(_mixer_kinds(config), is_dense, strict=True), layer),
            assumptions=multi_token_assumptions(config, "mtp_num_hidden_layers"),
        )
        return with_norms_scaling_in_fp32(model)


def _mixer_kinds(config: ConfigReader) -> list[MixerKind]:
    """Return what mixes each layer's tokens; without `layer_types` every fourth layer attends to everything."""
    num_layers = number_of_layers(config)
    interval = config.size("full_attention_interval", default=DEFAULT_ATTENTION_INTERVAL)
    return mixer_kinds(config, "layer_types", num_layers) or every_so_many(num_layers, interval)


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
    return read_mixture(
        config,
        hidden_size,
        experts=Sized("num_experts"),
        shared=SharedExperts(width=Sized("shared_expert_intermediate_size")),
        has_shared_gate=True,
    )


FAMILIES: Mapping[str, Family] = {
    "qwen3_next": Family(
        reader=QwenHybrid(
            is_grouped=True, has_experts=True, dense_layers=DenseLayers.BETWEEN_STEPS, key_value_heads_default=2
        ),
        has_experts=True,
        tracing=Tracing(gated_delta_module="qwen3_next.modeling_qwen3_next"),
        rotary_fraction=0.25,
        own_code=OwnCode(joins_rotated=True),
    ),
    "qwen3_5_text": Family(
        reader=QwenHybrid(),
        tracing=Tracing(gated_delta_module="qwen3_5.modeling_qwen3_5"),
        wrapped_layers=("Qwen3_5DecoderLayer",),
        rotary_fraction=0.25,
        own_code=OwnCode(joins_rotated=True),
    ),
    "qwen3_5_moe_text": Family(
        reader=QwenHybrid(has_experts=True, has_fused_experts=True, key_value_heads_default=2),
        has_experts=True,
        tracing=Tracing(gated_delta_module="qwen3_5_moe.modeling_qwen3_5_moe"),
        wrapped_layers=("Qwen3_5MoeDecoderLayer",),
        rotary_fraction=0.25,
        own_code=OwnCode(joins_rotated=True),
    ),
    "qwen3_5": Family(
        reader=qwen3_wrapper("qwen3_5_text", qwen3_5_tower),
        untraced=Untraced.TOWER,
        wrapped_layers=("Qwen3_5DecoderLayer",),
        rotary_fraction=0.25,
        own_code=OwnCode(joins_rotated=True),
    ),
    "qwen3_5_moe": Family(
        reader=qwen3_wrapper("qwen3_5_moe_text", qwen3_5_tower),
        untraced=Untraced.TOWER,
        wrapped_layers=("Qwen3_5MoeDecoderLayer",),
        rotary_fraction=0.25,
        own_code=OwnCode(joins_rotated=True),
    ),
}
