"""gpt-oss: every other layer slides over a short window, attention has sinks, experts have biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import mixture_half, with_norms_scaling_in_fp32
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    fused_expert_weights,
    router_weight,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Serving, Tracing
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import Sized, read_mixture
from plimsoll.planners.families.reading.own_code import OwnCode
from plimsoll.planners.families.reading.sublayers import ATTENTION, LAYER, Sublayer, attention_sublayer, layer_of
from plimsoll.planners.families.reading.windows import Windows, layer_windows

# Defaults of transformers' GptOssConfig.
DEFAULT_HEAD_DIM = 64
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_WINDOW = 128

MXFP4_NOTE = (
    "The checkpoint holds the experts' matrices in MXFP4, 4.25 bits a weight, as '_blocks' and '_scales'; they are "
    "described here in the names and shapes that they have once unpacked."
)


def gpt_oss(config: ConfigReader) -> ModelSpec:
    """Return the description of a gpt-oss model.

    Source: `transformers` 5.23, modeling_gpt_oss; the model card, arXiv:2508.10925.
    """
    attention = dataclasses.replace(
        read_attention(config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS),
        rotation_concatenates=True,
    )
    mixture = read_mixture(
        config,
        attention.hidden_size,
        experts=Sized("num_local_experts", 128),
        per_token=Sized("num_experts_per_tok", 4),
        width=Sized("intermediate_size"),
    )
    experts = Sublayer(half=mixture_half(mixture), weights=_expert_weights(mixture))
    bias = config.flag("attention_bias", default=True)
    config.ignore(
        "experts_per_token", "hidden_act", "initial_context_length", "output_router_logits", "router_aux_loss_coef",
        "swiglu_alpha", "swiglu_limit",
    )  # fmt: skip
    is_packed = config.section("quantization_config").text("quant_method", default="") == "mxfp4"

    def layer(indices: tuple[int, ...], window: int | None) -> Block:
        size = attention.with_window(window)
        mixer = attention_sublayer(size, bias=bias, sinks=f"{ATTENTION}.sinks")
        return layer_of(indices, size.hidden_size, mixer, experts, kind="expert_layer")

    model = decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=blocks_by_kind(layer_windows(config, Windows.EVERY_OTHER, default=DEFAULT_WINDOW), layer),
        assumptions=(MXFP4_NOTE,) if is_packed else (),
    )
    return with_norms_scaling_in_fp32(model)


def _expert_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    """Return router and experts, all of which add biases."""
    prefix = f"{LAYER}.mlp"
    names = (f"{prefix}.experts.gate_up_proj", f"{prefix}.experts.down_proj")
    return (
        router_weight(f"{prefix}.router.weight", mixture),
        Weight(name=f"{prefix}.router.bias", shape=(mixture.experts,), part=Part.ROUTER),
        *fused_expert_weights(names, mixture, FusedExperts.INPUT_FIRST, bias_suffix="_bias"),
    )


FAMILIES: Mapping[str, Family] = {
    "gpt_oss": Family(
        reader=gpt_oss,
        has_experts=True,
        tracing=Tracing(),
        serving=Serving(has_mxfp4_experts=True),
        own_code=OwnCode(kept_of_gated=5),
    ),
}
