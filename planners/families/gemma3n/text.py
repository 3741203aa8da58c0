"""Gemma 3n: four residual streams of which layers compute one, inputs for every layer, caches shared by layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.alternating_updates import (
    AlternatingUpdates,
    alternating_update_weights,
    stream_projection_weights,
    with_alternating_updates,
    with_stream_projections,
)
from plimsoll.planners.architecture.attention import GroupedAttention, separate_projections
from plimsoll.planners.architecture.decoder import (
    NormPlacement,
    attention_half,
    decoder_layer,
    feed_forward_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.per_layer_input import (
    PerLayerInput,
    per_layer_embedding_weights,
    per_layer_weights,
    with_per_layer_embedding,
)
from plimsoll.planners.architecture.shared_cache import shared_cache_half, shared_cache_weights
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.gemma4.text import NORM_NAMES, shared_cache_layers
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, query_key_norm_weights, read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.layer_kinds import named_layers, number_of_layers
from plimsoll.planners.families.reading.sublayers import LAYER

# Defaults of transformers' Gemma3nTextConfig.
DEFAULT_HEAD_DIM = 256
DEFAULT_KEY_VALUE_HEADS = 2
DEFAULT_WINDOW = 512
DEFAULT_INNER = 16_384
DEFAULT_SHARED_LAYERS = 15
FULL_ATTENTION_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another; `is_borrowing` means that it uses an earlier layer's cache."""

    window: int | None
    is_borrowing: bool
    intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What all layers of a model share."""

    attention: GroupedAttention
    bias: bool
    per_layer: PerLayerInput
    updates: AlternatingUpdates

    def block(self, indices: tuple[int, ...], kind: _Kind) -> Block:
        """Return the layers of one kind, within their streams and with their own inputs."""
        size, hidden_size = self.attention.with_window(kind.window), self.attention.hidden_size
        block = decoder_layer(
            layers=indices,
            hidden_size=hidden_size,
            mixer=shared_cache_half(size) if kind.is_borrowing else attention_half(size),
            feed_forward=feed_forward_half(hidden_size, kind.intermediate_size, gated=True),
            kv=None if kind.is_borrowing else size.kv_state(),
            norms=NormPlacement.SANDWICH,
            weights=(
                *_attention_weights(size, is_borrowing=kind.is_borrowing, bias=self.bias),
                *gated_weights(f"{LAYER}.mlp", hidden_size, kind.intermediate_size),
                *(weight for norm in NORM_NAMES for weight in norm_weights(f"{LAYER}.{norm}", hidden_size)),
                *alternating_update_weights(LAYER, self.updates),
                *per_layer_weights(LAYER, self.per_layer),
            ),
        )
        return with_alternating_updates(block, self.updates, self.per_layer)


def gemma3n_text(config: ConfigReader) -> ModelSpec:
    """Return the description of a Gemma 3n text model. Source: `transformers` 5.23, modeling_gemma3n."""
    attention = read_attention(
        config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS
    )
    hidden_size, kinds = attention.hidden_size, _kinds(config)
    family = _Layer(
        attention=attention,
        bias=config.flag("attention_bias", default=False),
        per_layer=PerLayerInput(
            hidden_size=hidden_size,
            width=config.size("hidden_size_per_layer_input", default=256),
            layers=len(kinds),
            vocabulary_size=config.size("vocab_size_per_layer_input", default=262_144),
        ),
        updates=AlternatingUpdates(
            hidden_size=hidden_size,
            streams=config.size("altup_num_inputs", default=4),
            residual_rank=config.size("laurel_rank", default=64),
        ),
    )
    per_layer, updates = family.per_layer, family.updates
    # Sparse activations are zeros within the same matrices.
    config.ignore(
        "activation_sparsity_pattern", "altup_active_idx", "altup_coef_clip", "altup_correct_scale",
        "altup_lr_multiplier", "final_logit_softcapping", "hidden_activation", "query_pre_attn_scalar",
        "rope_local_base_freq",
    )  # fmt: skip
    spec = decoder_model(
        config,
        attention=attention,
        vocabulary_size=config.size("vocab_size", default=262_400),
        layers=blocks_by_kind(kinds, family.block),
        tied=config.flag("tie_word_embeddings", default=True),
        other_embeddings=(
            *per_layer_embedding_weights(per_layer),
            *stream_projection_weights("model.altup_projections", updates, Part.EMBEDDING),
        ),
    )
    unembedding = stream_projection_weights("model.altup_unembed_projections", updates, Part.HEAD)
    head = dataclasses.replace(spec.head, weights=(*unembedding, *spec.head.weights))
    return dataclasses.replace(
        spec,
        embedding=with_stream_projections(with_per_layer_embedding(spec.embedding, per_layer), updates),
        head=with_stream_projections(head, updates),
    )


def _attention_weights(size: GroupedAttention, *, is_borrowing: bool, bias: bool) -> tuple[Weight, ...]:
    prefix = f"{LAYER}.self_attn"
    if is_borrowing:
        return shared_cache_weights(prefix, size, bias=bias)
    return (
        *separate_projections(prefix, size, qkv_bias=bias, output_bias=bias),
        *query_key_norm_weights(prefix, size, QueryKeyNorm.HEAD),
    )


def _kinds(config: ConfigReader) -> list[_Kind]:
    num_layers = number_of_layers(config, default=35)
    windows, widths = _windows(config, num_layers), _widths(config, num_layers)
    first_borrowing = num_layers - shared_cache_layers(config, windows, default=DEFAULT_SHARED_LAYERS)
    return [
        _Kind(window=window, is_borrowing=layer >= first_borrowing, intermediate_size=width)
        for layer, (window, width) in enumerate(zip(windows, widths, strict=True))
    ]


def _windows(config: ConfigReader, num_layers: int) -> list[int | None]:
    """Return each layer's window; where no list says, every fifth layer sees everything."""
    window = config.size("sliding_window", default=DEFAULT_WINDOW)
    named = named_layers(config, "layer_types", num_layers, "full_attention", "sliding_attention")
    if named is None:
        return [None if (layer + 1) % FULL_ATTENTION_EVERY == 0 else window for layer in range(num_layers)]
    return [window if kind == "sliding_attention" else None for kind in named]


def _widths(config: ConfigReader, num_layers: int) -> list[int]:
    """Return each layer's feed-forward features, which may be one number for all."""
    if not config.is_list("intermediate_size"):
        return [config.size("intermediate_size", default=DEFAULT_INNER)] * num_layers
    widths = config.whole_numbers("intermediate_size") or ()
    if len(widths) != num_layers or not all(widths):
        raise config.error("intermediate_size", f"'intermediate_size' must be {num_layers} widths, one a layer.")
    return list(widths)
