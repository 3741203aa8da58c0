"""Bamba and Granite 4: Mamba-2 layers with a few of attention between them, each with its own feed-forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.attention import GroupedAttention
from plimsoll.planners.architecture.decoder import feed_forward_half, mixture_half
from plimsoll.planners.architecture.feed_forward import fused_gated_weights
from plimsoll.planners.architecture.mamba import Mamba2
from plimsoll.planners.architecture.mixture_of_experts import FusedExperts, MixtureOfExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part
from plimsoll.planners.families.family import Family, PartNames, Tracing
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import MixtureNames, SharedExperts, Sized, counted, read_mixture
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds, mixers_at, number_of_layers
from plimsoll.planners.families.reading.own_code import OwnCode
from plimsoll.planners.families.reading.sublayers import (
    LAYER,
    Sublayer,
    attention_sublayer,
    gated_sublayer,
    layer_of,
    recurrent_sublayer,
)

LINEAR_NAMES = ("input_linear", "output_linear")
# Defaults of transformers' BambaConfig and GraniteMoeHybridConfig, which agree on the Mamba-2 layers.
DEFAULT_HEADS = 128
DEFAULT_GROUPS = 1
DEFAULT_STATE_SIZE = 256
DEFAULT_KERNEL = 4
DEFAULT_EXPAND = 2
DEFAULT_CHUNK = 256
DEFAULT_KEY_VALUE_HEADS = 8
SHARED = SharedExperts(width=Sized("shared_intermediate_size", 1024))
IGNORED = ("hidden_act", "num_logits_to_keep", "partial_rotary_factor", "time_step_limit")


def bamba(config: ConfigReader) -> ModelSpec:
    """Return the description of a Bamba model. Source: `transformers` 5.23, modeling_bamba."""
    attention = read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    num_layers = number_of_layers(config)
    config.ignore("layer_types", "layers_block_type", "sliding_window", "z_loss_coefficient", *IGNORED)
    attending = config.whole_numbers("attn_layer_indices") or ()
    if any(index >= num_layers for index in attending):
        raise config.error(
            "attn_layer_indices", f"'attn_layer_indices' names a layer beyond the last, {num_layers - 1}."
        )
    feed_forward = gated_sublayer(
        attention.hidden_size,
        config.size("intermediate_size"),
        prefix=f"{LAYER}.feed_forward",
        bias=config.flag("mlp_bias", default=False),
    )
    norms = ("input_layernorm", "pre_ff_layernorm")
    return decoder_model(
        config,
        attention=attention,
        layers=_layers(config, attention, mixers_at(attending, num_layers), feed_forward, norms),
        names=DecoderNames(final_norm="model.final_layernorm"),
    )


def granite_hybrid(config: ConfigReader) -> ModelSpec:
    """Return the description of a Granite 4 model: with experts beside a shared feed-forward, or that one alone.

    Source: `transformers` 5.23, modeling_granitemoehybrid.
    """
    config.must_be("position_embedding_type", "rope", "nope")
    has_rotary = config.text("position_embedding_type", default="nope") == "rope"
    attention = dataclasses.replace(read_attention(config), has_rotary=has_rotary)
    num_layers = number_of_layers(config)
    mixture = _mixture(config, attention.hidden_size)
    config.ignore("attention_multiplier", "embedding_multiplier", "init_method", "intermediate_size", "logits_scaling",
                  "normalization_function", "output_router_logits", "residual_multiplier", "router_aux_loss_coef",
                  *IGNORED)  # fmt: skip
    key = config.named("layer_types", "layers_block_type")
    kinds = mixer_kinds(config, key, num_layers) or [MixerKind.LINEAR] * num_layers
    norms = ("input_layernorm", "post_attention_layernorm")
    return decoder_model(
        config,
        attention=attention,
        mixture=mixture,
        layers=_layers(config, attention, kinds, _granite_feed_forward(mixture), norms),
    )


def _layers(
    config: ConfigReader,
    attention: GroupedAttention,
    kinds: list[MixerKind],
    feed_forward: Sublayer,
    norms: tuple[str, str],
) -> tuple[Block, ...]:
    """Return the layers, all of which have the same feed-forward."""
    mamba, bias = _mamba2(config, attention.hidden_size), config.flag("attention_bias", default=False)
    mixers = {
        MixerKind.LINEAR: recurrent_sublayer(mamba, f"{LAYER}.mamba"),
        MixerKind.FULL: attention_sublayer(attention, bias=bias),
    }

    def layer(indices: tuple[int, ...], kind: MixerKind) -> Block:
        return layer_of(indices, attention.hidden_size, mixers[kind], feed_forward, kind=kind.value, norms=norms)

    return blocks_by_kind(kinds, layer)


def _granite_feed_forward(mixture: MixtureOfExperts) -> Sublayer:
    """Return the feed-forward; without experts the shared one is the only one."""
    hidden_size, width = mixture.hidden_size, mixture.shared_intermediate_size
    part = Part.SHARED_EXPERT if mixture.experts else Part.FEED_FORWARD
    shared = fused_gated_weights(f"{LAYER}.shared_mlp", hidden_size, width, names=LINEAR_NAMES, part=part)
    if not mixture.experts:
        return Sublayer(half=feed_forward_half(hidden_size, width, gated=True), weights=shared)
    names = MixtureNames(
        prefix=f"{LAYER}.block_sparse_moe",
        router="router.layer",
        fused=FusedExperts.OUTPUT_FIRST,
        fused_names=("input_linear.weight", "output_linear.weight"),
    )
    experts = names.weights(dataclasses.replace(mixture, shared_intermediate_size=0))
    return Sublayer(half=mixture_half(mixture), weights=(*experts, *shared))


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    """Return the experts, of which there may be none, and the feed-forward that they share."""
    experts, chosen = counted("num_local_experts", 8), counted("num_experts_per_tok", 2)
    if experts.read(config):
        return read_mixture(
            config, hidden_size, experts=experts, per_token=chosen, width=Sized("intermediate_size"), shared=SHARED
        )
    chosen.read(config)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=0,
        experts=0,
        experts_per_token=0,
        shared_intermediate_size=SHARED.features(config, 0),
    )


def _mamba2(config: ConfigReader, hidden_size: int) -> Mamba2:
    heads = config.size("mamba_n_heads", default=DEFAULT_HEADS)
    inner_width = config.size("mamba_expand", default=DEFAULT_EXPAND) * hidden_size
    config.must_divide("mamba_n_heads", heads, "mamba_expand x hidden_size", inner_width)
    if config.is_text("mamba_d_head") or config.is_absent("mamba_d_head"):
        config.must_be("mamba_d_head", "auto")
        head_dim = inner_width // heads
    else:
        head_dim = config.size("mamba_d_head")
    if heads * head_dim != inner_width:
        raise config.error(
            "mamba_d_head", f"mamba_n_heads x mamba_d_head ({heads * head_dim}) is not the width {inner_width}."
        )
    return Mamba2(
        hidden_size=hidden_size,
        heads=heads,
        head_dim=head_dim,
        groups=config.size("mamba_n_groups", default=DEFAULT_GROUPS),
        state_size=config.size("mamba_d_state", default=DEFAULT_STATE_SIZE),
        kernel=config.size("mamba_d_conv", default=DEFAULT_KERNEL),
        chunk=config.size("mamba_chunk_size", default=DEFAULT_CHUNK),
        projection_bias=config.flag("mamba_proj_bias", default=False),
        convolution_bias=config.flag("mamba_conv_bias", default=True),
    )


FAMILIES: Mapping[str, Family] = {
    "bamba": Family(
        reader=bamba,
        parts=PartNames(norm="final_layernorm"),
        tracing=Tracing(state_space_module="bamba.modeling_bamba"),
        own_code=OwnCode(joins_rotated=True),
    ),
    "granitemoehybrid": Family(
        reader=granite_hybrid,
        has_experts=True,
        tracing=Tracing(state_space_module="granitemoehybrid.modeling_granitemoehybrid"),
        own_code=OwnCode(scales_additions=True),
    ),
}
