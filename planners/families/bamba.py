"""Bamba and Granite 4: Mamba-2 layers with a few of attention between them, each with its own feed-forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    Half,
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
    recurrent_half,
)
from plimsoll.planners.architecture.feed_forward import fused_gated_weights, gated_weights
from plimsoll.planners.architecture.mamba import Mamba2
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    fused_expert_weights,
    router_weight,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.dense import read_attention
from plimsoll.planners.families.reading.layer_kinds import MixerKind, mixer_kinds, mixers_at
from plimsoll.planners.families.reading.mixtures import checked_experts_per_token

LAYER = "model.layers.{layer}"
LINEAR_NAMES = ("input_linear", "output_linear")
# Defaults of transformers' BambaConfig and GraniteMoeHybridConfig, which agree on the Mamba-2 layers.
DEFAULT_HEADS = 128
DEFAULT_GROUPS = 1
DEFAULT_STATE_SIZE = 256
DEFAULT_KERNEL = 4
DEFAULT_EXPAND = 2
DEFAULT_KEY_VALUE_HEADS = 8
DEFAULT_EXPERTS = 8
DEFAULT_EXPERTS_PER_TOKEN = 2
DEFAULT_SHARED_WIDTH = 1024
IGNORED = ("hidden_act", "mamba_chunk_size", "num_logits_to_keep", "partial_rotary_factor", "time_step_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common: every layer has the same feed-forward."""

    attention: GroupedAttention
    attention_bias: bool
    mamba: Mamba2
    feed_forward: Half
    feed_forward_weights: tuple[Weight, ...]
    second_norm: str

    def block(self, indices: tuple[int, ...], mixer: MixerKind) -> Block:
        """Return the layers at `indices`."""
        hidden_size, recurrence, bias = self.attention.hidden_size, self.mamba.mixer(), self.attention_bias
        is_linear = mixer is MixerKind.LINEAR
        mixer_weights = (
            self.mamba.weights(f"{LAYER}.mamba")
            if is_linear
            else separate_projections(f"{LAYER}.self_attn", self.attention, qkv_bias=bias, output_bias=bias)
        )
        return decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=recurrent_half(recurrence) if is_linear else attention_half(self.attention),
            feed_forward=self.feed_forward,
            kv=recurrence.kv_state() if is_linear else self.attention.kv_state(),
            kind=mixer.value,
            weights=(
                *mixer_weights,
                *self.feed_forward_weights,
                *norm_weights(f"{LAYER}.input_layernorm", hidden_size),
                *norm_weights(f"{LAYER}.{self.second_norm}", hidden_size),
            ),
        )


def bamba(config: ConfigReader) -> ModelSpec:
    """Return the description of a Bamba model. Source: `transformers` 5.23, modeling_bamba."""
    attention = read_attention(config, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    hidden_size, intermediate_size = attention.hidden_size, config.size("intermediate_size")
    bias = config.flag("mlp_bias", default=False)
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    layer = _Layer(
        attention=attention,
        attention_bias=config.flag("attention_bias", default=False),
        mamba=_mamba2(config, hidden_size),
        feed_forward=feed_forward_half(hidden_size, intermediate_size, gated=True),
        feed_forward_weights=gated_weights(f"{LAYER}.feed_forward", hidden_size, intermediate_size, bias=bias),
        second_norm="pre_ff_layernorm",
    )
    config.ignore("layer_types", "layers_block_type", "sliding_window", "z_loss_coefficient", *IGNORED)
    attending = config.whole_numbers("attn_layer_indices") or ()
    if any(index >= num_layers for index in attending):
        raise config.error(
            "attn_layer_indices", f"'attn_layer_indices' names a layer beyond the last, {num_layers - 1}."
        )
    kinds = mixers_at(attending, num_layers)
    return _model(config, attention, blocks_by_kind(kinds, layer.block), final_norm="model.final_layernorm")


def granite_hybrid(config: ConfigReader) -> ModelSpec:
    """Return the description of a Granite 4 model: with experts beside a shared feed-forward, or that one alone.

    Source: `transformers` 5.23, modeling_granitemoehybrid.
    """
    config.must_be("position_embedding_type", "rope", "nope")
    has_rotary = config.text("position_embedding_type", default="nope") == "rope"
    attention = dataclasses.replace(read_attention(config), has_rotary=has_rotary)
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    mixture = _mixture(config, attention.hidden_size)
    feed_forward, weights = _granite_feed_forward(mixture)
    layer = _Layer(
        attention=attention,
        attention_bias=config.flag("attention_bias", default=False),
        mamba=_mamba2(config, attention.hidden_size),
        feed_forward=feed_forward,
        feed_forward_weights=weights,
        second_norm="post_attention_layernorm",
    )
    config.ignore("attention_multiplier", "embedding_multiplier", "init_method", "intermediate_size", "logits_scaling",
                  "normalization_function", "output_router_logits", "residual_multiplier", "router_aux_loss_coef",
                  *IGNORED)  # fmt: skip
    key = config.named("layer_types", "layers_block_type")
    kinds = mixer_kinds(config, key, num_layers) or [MixerKind.LINEAR] * num_layers
    layers = blocks_by_kind(kinds, layer.block)
    return _model(
        config,
        attention,
        layers,
        final_norm="model.norm",
        experts_per_token=mixture.experts_per_token,
    )


def _granite_feed_forward(mixture: MixtureOfExperts) -> tuple[Half, tuple[Weight, ...]]:
    """Return the feed-forward half and its weights; without experts the shared one is the only one."""
    prefix, hidden_size, width = f"{LAYER}.block_sparse_moe", mixture.hidden_size, mixture.shared_intermediate_size
    part = Part.SHARED_EXPERT if mixture.experts else Part.FEED_FORWARD
    shared = fused_gated_weights(f"{LAYER}.shared_mlp", hidden_size, width, names=LINEAR_NAMES, part=part)
    if not mixture.experts:
        return feed_forward_half(hidden_size, width, gated=True), shared
    first, second = (f"{prefix}.{name}.weight" for name in LINEAR_NAMES)
    return mixture_half(mixture), (
        router_weight(f"{prefix}.router.layer.weight", mixture),
        *fused_expert_weights((first, second), mixture, FusedExperts.OUTPUT_FIRST),
        *shared,
    )


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    experts = config.count("num_local_experts", default=DEFAULT_EXPERTS)
    chosen = config.count("num_experts_per_tok", default=DEFAULT_EXPERTS_PER_TOKEN)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size") if experts else 0,
        experts=experts,
        experts_per_token=(checked_experts_per_token(config, "num_experts_per_tok", chosen, experts) if experts else 0),
        shared_intermediate_size=config.size("shared_intermediate_size", default=DEFAULT_SHARED_WIDTH),
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
        projection_bias=config.flag("mamba_proj_bias", default=False),
        convolution_bias=config.flag("mamba_conv_bias", default=True),
    )


def _model(
    config: ConfigReader,
    attention: GroupedAttention,
    layers: tuple[Block, ...],
    *,
    final_norm: str,
    experts_per_token: int = 0,
) -> ModelSpec:
    return decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
            experts_per_token=experts_per_token,
        ),
        layers=layers,
        tied=config.flag("tie_word_embeddings", default=False),
        names=DecoderNames(final_norm=final_norm),
    )


FAMILIES: Mapping[str, Family] = {
    "bamba": Family(
        reader=bamba,
        untraced=Untraced.LOOPS,
    ),
    "granitemoehybrid": Family(
        reader=granite_hybrid,
        untraced=Untraced.LOOPS,
    ),
}
