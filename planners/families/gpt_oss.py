"""gpt-oss: every other layer slides over a short window, attention has sinks, experts have biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections, sink_weight
from plimsoll.planners.architecture.decoder import (
    attention_half,
    decoder_layer,
    mixture_half,
    norm_weights,
    with_norms_scaling_in_fp32,
)
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    fused_expert_weights,
    router_weight,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Serving, Tracing
from plimsoll.planners.families.reading.assembly import DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.dense import Windows, layer_windows, read_attention
from plimsoll.planners.families.reading.mixtures import checked_experts_per_token
from plimsoll.planners.families.reading.own_code import OwnCode

# Defaults of transformers' GptOssConfig.
DEFAULT_HEAD_DIM = 64
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_WINDOW = 128
DEFAULT_EXPERTS = 128
DEFAULT_EXPERTS_PER_TOKEN = 4

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
    experts = config.size("num_local_experts", default=DEFAULT_EXPERTS)
    chosen = config.size("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    mixture = MixtureOfExperts(
        hidden_size=attention.hidden_size,
        intermediate_size=config.size("intermediate_size"),
        experts=experts,
        experts_per_token=checked_experts_per_token(config, "num_experts_per_tok", chosen, experts),
    )
    bias = config.flag("attention_bias", default=True)
    config.ignore(
        "experts_per_token", "hidden_act", "initial_context_length", "output_router_logits", "router_aux_loss_coef",
        "swiglu_alpha", "swiglu_limit",
    )  # fmt: skip
    is_packed = config.section("quantization_config").text("quant_method", default="") == "mxfp4"

    def layer(indices: tuple[int, ...], window: int | None) -> Block:
        size = attention.with_window(window)
        return decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            feed_forward=mixture_half(mixture),
            kv=size.kv_state(),
            kind="expert_layer",
            weights=_layer_weights("model.layers.{layer}", size, mixture, bias=bias),
        )

    model = decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=mixture.experts_per_token,
        ),
        layers=blocks_by_kind(layer_windows(config, Windows.EVERY_OTHER, default=DEFAULT_WINDOW), layer),
        tied=config.flag("tie_word_embeddings", default=False),
        assumptions=(MXFP4_NOTE,) if is_packed else (),
    )
    return with_norms_scaling_in_fp32(model)


def _layer_weights(
    prefix: str, attention: GroupedAttention, mixture: MixtureOfExperts, *, bias: bool
) -> tuple[Weight, ...]:
    experts = f"{prefix}.mlp.experts"
    return (
        *separate_projections(f"{prefix}.self_attn", attention, qkv_bias=bias, output_bias=bias),
        sink_weight(f"{prefix}.self_attn.sinks", attention),
        router_weight(f"{prefix}.mlp.router.weight", mixture),
        Weight(name=f"{prefix}.mlp.router.bias", shape=(mixture.experts,), part=Part.ROUTER),
        *fused_expert_weights(
            (f"{experts}.gate_up_proj", f"{experts}.down_proj"),
            mixture,
            FusedExperts.INPUT_FIRST,
            bias_suffix="_bias",
        ),
        *norm_weights(f"{prefix}.input_layernorm", attention.hidden_size),
        *norm_weights(f"{prefix}.post_attention_layernorm", attention.hidden_size),
    )


FAMILIES: Mapping[str, Family] = {
    "gpt_oss": Family(
        reader=gpt_oss,
        has_experts=True,
        tracing=Tracing(has_biased_experts=True),
        serving=Serving(has_mxfp4_experts=True),
        own_code=OwnCode(kept_of_gated=5),
    ),
}
