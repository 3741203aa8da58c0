"""Gemma 4: wider heads in the layers that see everything, keys that are values too, experts beside a feed-forward."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, column, output_projection
from plimsoll.planners.architecture.decoder import (
    Half,
    NormPlacement,
    attention_half,
    decoder_layer,
    feed_forward_half,
    mixture_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import gated_weights
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    fused_expert_weights,
    router_weight,
)
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Tensor, norm
from plimsoll.planners.architecture.per_layer_input import (
    PerLayerInput,
    per_layer_embedding_weights,
    per_layer_weights,
    with_per_layer_embedding,
    with_per_layer_input,
)
from plimsoll.planners.architecture.shared_cache import shared_cache_half, shared_cache_weights
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.assembly import blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import QueryKeyNorm, query_key_norm_weights, read_attention
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.sublayers import LAYER
from plimsoll.planners.families.reading.windows import Windows, layer_windows

# Defaults of transformers' Gemma4TextConfig.
DEFAULT_HEAD_DIM = 256
DEFAULT_GLOBAL_HEAD_DIM = 512
DEFAULT_KEY_VALUE_HEADS = 4
DEFAULT_WINDOW = 512
DEFAULT_PER_LAYER_INPUT = 256
DEFAULT_VOCABULARY = 262_144
NORM_NAMES = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
MIXTURE_NORM_NAMES = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart from another; `is_borrowing` means that it uses an earlier layer's cache."""

    window: int | None
    is_borrowing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """What the layers of one model have in common.

    Borrowing layers have `borrowing_intermediate_size` features in their feed-forward.
    """

    sliding: GroupedAttention
    everywhere: GroupedAttention
    intermediate_size: int
    borrowing_intermediate_size: int
    mixture: MixtureOfExperts | None
    per_layer: PerLayerInput | None
    key_is_value: bool
    bias: bool

    def block(self, indices: tuple[int, ...], kind: _Kind) -> Block:
        """Return the layers at `indices`."""
        layer = self._layer(indices, kind)
        return layer if self.per_layer is None else with_per_layer_input(layer, self.per_layer)

    def _layer(self, indices: tuple[int, ...], kind: _Kind) -> Block:
        size = self.everywhere if kind.window is None else self.sliding.with_window(kind.window)
        key_is_value = kind.window is None and self.key_is_value
        hidden = size.hidden_size
        inner = self.borrowing_intermediate_size if kind.is_borrowing else self.intermediate_size
        mixture = self.mixture
        return decoder_layer(
            layers=indices,
            hidden_size=hidden,
            mixer=shared_cache_half(size) if kind.is_borrowing else _attention(size, key_is_value=key_is_value),
            feed_forward=(
                feed_forward_half(hidden, inner, gated=True) if mixture is None else _normed_mixture(mixture, inner)
            ),
            kv=None if kind.is_borrowing else size.kv_state(),
            norms=NormPlacement.SANDWICH,
            kind="dense_layer" if mixture is None else "expert_layer",
            weights=(
                *(
                    shared_cache_weights(f"{LAYER}.self_attn", size, bias=self.bias)
                    if kind.is_borrowing
                    else _attention_weights(size, key_is_value=key_is_value, bias=self.bias)
                ),
                *gated_weights(f"{LAYER}.mlp", hidden, inner),
                *(() if mixture is None else _mixture_weights(mixture)),
                *(weight for name in NORM_NAMES for weight in norm_weights(f"{LAYER}.{name}", hidden)),
                *(() if self.per_layer is None else per_layer_weights(LAYER, self.per_layer)),
                Weight(name=f"{LAYER}.layer_scalar", shape=(1,), part=Part.NORM, is_buffer=True),
            ),
        )


def gemma4_text(config: ConfigReader) -> ModelSpec:
    """Return the description of a Gemma 4 text model.

    The small models (E2B, E4B) embed each token once more for every layer, and their
    last layers use the cache of the last layer of their kind before them.

    Source: `transformers` 5.23, modeling_gemma4.
    """
    config.must_be("use_bidirectional_attention", "vision")
    config.ignore("expert_intermediate_size", "final_logit_softcapping", "hidden_activation")
    sliding = read_attention(config, head_dim_default=DEFAULT_HEAD_DIM, key_value_heads_default=DEFAULT_KEY_VALUE_HEADS)
    intermediate_size = config.size("intermediate_size")
    mixture = _mixture(config, sliding.hidden_size, intermediate_size)
    kinds = _kinds(config)
    per_layer = _per_layer_input(config, sliding.hidden_size, len(kinds))
    doubles = config.flag("use_double_wide_mlp", default=False)
    layers = _Layers(
        sliding=sliding,
        everywhere=_global_attention(config, sliding),
        intermediate_size=intermediate_size,
        borrowing_intermediate_size=intermediate_size * (2 if doubles else 1),
        mixture=mixture,
        per_layer=per_layer,
        key_is_value=config.flag("attention_k_eq_v", default=False),
        bias=config.flag("attention_bias", default=False),
    )
    spec = decoder_model(
        config,
        attention=sliding,
        mixture=mixture,
        layers=blocks_by_kind(kinds, layers.block),
        tied=config.flag("tie_word_embeddings", default=True),
        other_embeddings=() if per_layer is None else per_layer_embedding_weights(per_layer),
    )
    if per_layer is None:
        return spec
    return dataclasses.replace(spec, embedding=with_per_layer_embedding(spec.embedding, per_layer))


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's window, and whether it uses the cache of an earlier layer."""
    windows = layer_windows(config, Windows.ALL_BUT_EVERY_SIXTH, default=DEFAULT_WINDOW)
    # The class makes the last layer one that sees everything, whatever the config says.
    windows[-1] = None
    first_borrowing = len(windows) - shared_cache_layers(config, windows)
    return [_Kind(window=window, is_borrowing=layer >= first_borrowing) for layer, window in enumerate(windows)]


def shared_cache_layers(config: ConfigReader, windows: list[int | None], *, default: int = 0) -> int:
    """Return how many layers, the last ones, use another layer's cache; raise if one of their kind has no cache."""
    shared = config.count("num_kv_shared_layers", default=default)
    caching = set(windows[: max(len(windows) - shared, 0)])
    if shared and caching != set(windows):
        raise config.error(
            "num_kv_shared_layers",
            f"The last {shared} of {len(windows)} layers use the cache of a layer of their kind before them; "
            "one kind has none.",
        )
    return shared


def _per_layer_input(config: ConfigReader, hidden_size: int, num_layers: int) -> PerLayerInput | None:
    width = config.count("hidden_size_per_layer_input", default=DEFAULT_PER_LAYER_INPUT)
    vocabulary_size = config.size("vocab_size_per_layer_input", default=DEFAULT_VOCABULARY)
    if not width:
        return None
    return PerLayerInput(hidden_size=hidden_size, width=width, layers=num_layers, vocabulary_size=vocabulary_size)


def _global_attention(config: ConfigReader, sliding: GroupedAttention) -> GroupedAttention:
    """Return the attention of the layers that see everything."""
    key_value_heads = sliding.key_value_heads
    global_heads = config.size("num_global_key_value_heads", default=key_value_heads)
    if config.flag("attention_k_eq_v", default=False):
        config.must_divide("num_global_key_value_heads", global_heads, "num_attention_heads", sliding.heads)
        key_value_heads = global_heads
    head_dim = config.size("global_head_dim", default=DEFAULT_GLOBAL_HEAD_DIM)
    return dataclasses.replace(sliding, key_value_heads=key_value_heads, head_dim=head_dim)


def _mixture(config: ConfigReader, hidden_size: int, intermediate_size: int) -> MixtureOfExperts | None:
    """Return the experts, beside which the dense feed-forward works as a shared one; None where there are none."""
    if not config.flag("enable_moe_block", default=False):
        config.ignore("moe_intermediate_size", "num_experts", "top_k_experts")
        return None
    experts, chosen = config.size("num_experts"), config.size("top_k_experts")
    if chosen > experts:
        raise config.error("top_k_experts", f"'top_k_experts' ({chosen}) is more than the {experts} experts.")
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=config.size("moe_intermediate_size"),
        experts=experts,
        experts_per_token=chosen,
        shared_intermediate_size=intermediate_size,
    )


def _attention(size: GroupedAttention, *, key_is_value: bool) -> Half:
    """Return attention whose values are the keys before their rotation, where they are no projection of their own."""
    half = attention_half(size)
    if not key_is_value:
        return half
    return Half(
        tensors=half.tensors,
        operations=tuple(operation for operation in half.operations if operation.name != "value_projection"),
    )


def _attention_weights(size: GroupedAttention, *, key_is_value: bool, bias: bool) -> tuple[Weight, ...]:
    prefix = f"{LAYER}.self_attn"
    names = [("q_proj", size.query_width, size.heads), ("k_proj", size.key_value_width, size.key_value_heads)]
    if not key_is_value:
        names.append(("v_proj", size.key_value_width, size.key_value_heads))
    return (
        *(column(f"{prefix}.{name}.weight", (width, size.hidden_size), n, is_linear=True) for name, width, n in names),
        *(column(f"{prefix}.{name}.bias", (width,), units) for name, width, units in names if bias),
        output_projection(f"{prefix}.o_proj.weight", size),
        *((Weight(name=f"{prefix}.o_proj.bias", shape=(size.hidden_size,), part=Part.ATTENTION),) if bias else ()),
        *query_key_norm_weights(prefix, size, QueryKeyNorm.HEAD),
    )


def _mixture_weights(mixture: MixtureOfExperts) -> tuple[Weight, ...]:
    hidden = mixture.hidden_size
    return (
        router_weight(f"{LAYER}.router.proj.weight", mixture),
        Weight(name=f"{LAYER}.router.scale", shape=(hidden,), part=Part.ROUTER),
        Weight(name=f"{LAYER}.router.per_expert_scale", shape=(mixture.experts,), part=Part.ROUTER),
        *fused_expert_weights(
            (f"{LAYER}.experts.gate_up_proj", f"{LAYER}.experts.down_proj"), mixture, FusedExperts.OUTPUT_FIRST
        ),
        *(weight for name in MIXTURE_NORM_NAMES for weight in norm_weights(f"{LAYER}.{name}", hidden)),
    )


def _normed_mixture(mixture: MixtureOfExperts, intermediate_size: int) -> Half:
    """Return the experts and the feed-forward beside them, with the three norms that each side has for itself."""
    half = mixture_half(dataclasses.replace(mixture, shared_intermediate_size=intermediate_size))
    norms = (
        ("expert_input_norm", "feed_forward_input", "expert_normed_input"),
        ("expert_output_norm", "feed_forward_output", "expert_normed_output"),
        ("shared_output_norm", "feed_forward_output", "shared_normed_output"),
    )
    operations = tuple(norm(name, source, output) for name, source, output in norms)
    tensors = tuple(Tensor(name=output, width=mixture.hidden_size) for _, _, output in norms)
    return Half(tensors=(*half.tensors, *tensors), operations=(*half.operations, *operations))
