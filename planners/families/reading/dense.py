"""The reader of dense decoders: attention, feed-forward, norms, in the arrangement a family chose.

Most families differ only in what is listed by `DenseDecoder`; each is one entry
of `dense_families.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.planners.architecture.attention import (
    GroupedAttention,
    output_projection,
    query_key_value_weights,
    separate_projections,
)
from plimsoll.planners.architecture.decoder import (
    NormPlacement,
    attention_half,
    decoder_layer,
    feed_forward_half,
    with_norms_scaling_in_fp32,
)
from plimsoll.planners.architecture.feed_forward import fused_gated_weights, gated_weights, plain_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.families.reading.assembly import DecoderNames, DecoderSizes, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

# The default of transformers' Qwen2Config and Qwen3Config.
DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Whether matrices have a bias: the config's `key` says so, which may go by `other_key`, else `default`."""

    key: str | None = None
    default: bool = False
    other_key: str | None = None

    def read(self, config: ConfigReader) -> bool:
        """Return whether this model has the bias."""
        if self.key is None:
            return self.default
        key = self.key if self.other_key is None else config.named(self.key, self.other_key)
        return config.flag(key, default=self.default)


NEVER = Bias()
ALWAYS = Bias(default=True)


# Phi's norms of queries and keys have biases of their own; no published checkpoint has them.
PHIS_QUERY_KEY_NORM = "qk_layernorm"


class QueryKeyNorm(StrEnum):
    """What normalizes queries and keys: nothing, each head's features, all heads' features together, a scale
    for each head and feature, or a norm of its own for each head."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"
    EACH_HEAD = "each_head"
    OWN_NORMS = "own_norms"


class Windows(StrEnum):
    """Which layers a `sliding_window` covers when `layer_types` does not say."""

    NONE = "none"
    ALL = "all"
    FROM_MAX_WINDOW_LAYERS = "from_max_window_layers"
    ALL_BUT_EVERY_FOURTH = "all_but_every_fourth"
    ALL_BUT_EVERY_SIXTH = "all_but_every_sixth"
    EVERY_OTHER = "every_other"  # the first has one
    EVERY_OTHER_BELOW_MAX_WINDOW_LAYERS = "every_other_below_max_window_layers"


class FeedForward(StrEnum):
    """The feed-forward: gated with two or one first matrix, or plain."""

    GATED = "gated"
    FUSED_GATED = "fused_gated"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDecoder:
    """What differs between dense families; defaults are Llama's.

    `norm_names` stand in every layer; `has_norm_weight` is false where norms
    have no parameters (OLMo), `norms_scale_in_fp32` true where they multiply by their scale before they
    cast back. `plain_names` are the two matrices of a plain feed-forward. `rotation_concatenates`: see
    `Operation.concatenates`. Defaults that a config may leave out are its config class's own.
    """

    qkv_bias: Bias = Bias(key="attention_bias")
    output_bias: Bias = Bias(key="attention_bias")
    feed_forward_bias: Bias = Bias(key="mlp_bias")
    head_bias: bool = False
    has_fused_projections: bool = False  # queries, keys and values in one matrix
    query_key_norm: QueryKeyNorm = QueryKeyNorm.NONE
    query_key_norm_switch: str | None = None
    norms: NormPlacement = NormPlacement.PRE
    parallel_switch: str | None = None
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    has_norm_weight: bool = True
    norms_scale_in_fp32: bool = False
    rotation_concatenates: bool = False
    feed_forward: FeedForward = FeedForward.GATED
    plain_names: tuple[str, str] = ("up_proj", "down_proj")
    output_name: str = "o_proj"
    names: DecoderNames = field(default_factory=DecoderNames)
    tied_by_default: bool = False
    head_dim_default: int | None = None
    key_value_heads_default: int | None = None  # None: as many as there are query heads
    windows: Windows = Windows.NONE
    window_default: int | None = None
    multi_token_keys: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __call__(self, config: ConfigReader) -> ModelSpec:
        """Return the description of a model of this form."""
        return _dense_decoder(config, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What the layers of one model have in common, read from its config."""

    family: DenseDecoder
    attention: GroupedAttention
    intermediate_size: int
    qkv_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    query_key_norm: QueryKeyNorm
    is_parallel: bool

    def block(self, indices: tuple[int, ...], window: int | None) -> Block:
        """Return the layers at `indices`, which look back over `window` tokens."""
        size = self.attention.with_window(window)
        gated = self.family.feed_forward is not FeedForward.PLAIN
        return decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            feed_forward=feed_forward_half(size.hidden_size, self.intermediate_size, gated=gated),
            kv=size.kv_state(),
            norms=NormPlacement.PARALLEL if self.is_parallel else self.family.norms,
            weights=(*self._attention_weights(), *self._feed_forward_weights(), *self._norm_weights()),
        )

    def _attention_weights(self) -> tuple[Weight, ...]:
        if self.family.has_fused_projections:
            prefix, size = "model.layers.{layer}.self_attn", self.attention
            return (
                *query_key_value_weights((f"{prefix}.qkv_proj",), size, bias=self.qkv_bias),
                output_projection(f"{prefix}.{self.family.output_name}.weight", size),
            )
        return (
            *separate_projections(
                "model.layers.{layer}.self_attn",
                self.attention,
                qkv_bias=self.qkv_bias,
                output_bias=self.output_bias,
                output_name=self.family.output_name,
            ),
            *query_key_norm_weights("model.layers.{layer}.self_attn", self.attention, self.query_key_norm),
        )

    def _feed_forward_weights(self) -> tuple[Weight, ...]:
        prefix, hidden_size = "model.layers.{layer}.mlp", self.attention.hidden_size
        if self.family.feed_forward is FeedForward.PLAIN:
            return plain_weights(
                prefix, hidden_size, self.intermediate_size, names=self.family.plain_names, bias=self.feed_forward_bias
            )
        if self.family.feed_forward is FeedForward.FUSED_GATED:
            return fused_gated_weights(prefix, hidden_size, self.intermediate_size)
        return gated_weights(prefix, hidden_size, self.intermediate_size, bias=self.feed_forward_bias)

    def _norm_weights(self) -> tuple[Weight, ...]:
        if not self.family.has_norm_weight:
            return ()
        names = self.family.norm_names[:1] if self.is_parallel else self.family.norm_names
        kinds = ("weight", "bias") if self.family.norm_bias else ("weight",)
        return tuple(
            Weight(name=f"model.layers.{{layer}}.{name}.{kind}", shape=(self.attention.hidden_size,), part=Part.NORM)
            for name in names
            for kind in kinds
        )


def _dense_decoder(config: ConfigReader, family: DenseDecoder) -> ModelSpec:
    """Return the description of a dense decoder."""
    attention = read_attention(
        config,
        head_dim_default=family.head_dim_default,
        key_value_heads_default=family.key_value_heads_default,
    )
    has_query_key_norm = family.query_key_norm_switch is None or config.flag(
        family.query_key_norm_switch, default=False
    )
    query_key_norm = family.query_key_norm if has_query_key_norm else QueryKeyNorm.NONE
    layer = _Layer(
        family=family,
        attention=dataclasses.replace(
            with_query_key_norm(attention, query_key_norm), rotation_concatenates=family.rotation_concatenates
        ),
        intermediate_size=config.size("intermediate_size"),
        qkv_bias=family.qkv_bias.read(config),
        output_bias=family.output_bias.read(config),
        feed_forward_bias=family.feed_forward_bias.read(config),
        query_key_norm=query_key_norm,
        is_parallel=family.norms is NormPlacement.PARALLEL
        or (family.parallel_switch is not None and config.flag(family.parallel_switch, default=False)),
    )
    config.must_be("use_bidirectional_attention", False)
    if family.query_key_norm_switch != PHIS_QUERY_KEY_NORM:
        config.must_be(PHIS_QUERY_KEY_NORM, False)
    config.ignore("hidden_act", *family.ignored)
    model = decoder_model(
        config,
        sizes=DecoderSizes(
            hidden_size=attention.hidden_size,
            vocabulary_size=config.size("vocab_size"),
            heads=attention.heads,
            key_value_heads=attention.key_value_heads,
        ),
        layers=blocks_by_kind(layer_windows(config, family.windows, default=family.window_default), layer.block),
        tied=config.flag("tie_word_embeddings", default=family.tied_by_default),
        names=family.names,
        norm_bias=family.norm_bias,
        has_norm_weight=family.has_norm_weight,
        head_bias=family.head_bias,
        assumptions=multi_token_assumptions(config, *family.multi_token_keys) if family.multi_token_keys else (),
    )
    return with_norms_scaling_in_fp32(model) if family.norms_scale_in_fp32 else model


def read_attention(
    config: ConfigReader, *, head_dim_default: int | None = None, key_value_heads_default: int | None = None
) -> GroupedAttention:
    """Return the attention's sizes under the names nearly every family uses.

    A config that leaves `num_key_value_heads` out has its class's default; one
    that says null has as many as query heads.
    """
    hidden_size = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    left_out = config.is_left_out("num_key_value_heads")
    key_value_heads = config.size(
        "num_key_value_heads", default=(key_value_heads_default if left_out else None) or heads
    )
    config.must_divide("num_key_value_heads", key_value_heads, "num_attention_heads", heads)
    head_dim = config.optional_size("head_dim") or head_dim_default
    if head_dim is None:
        config.must_divide("num_attention_heads", heads, "hidden_size", hidden_size)
        head_dim = hidden_size // heads
    return GroupedAttention(hidden_size=hidden_size, heads=heads, key_value_heads=key_value_heads, head_dim=head_dim)


def with_query_key_norm(size: GroupedAttention, kind: QueryKeyNorm) -> GroupedAttention:
    """Return the attention with the norms of queries and keys among its operations."""
    if kind is QueryKeyNorm.NONE:
        return size
    return dataclasses.replace(size, norms_query_key=True, norms_heads=kind is not QueryKeyNorm.WIDTH)


def query_key_norm_weights(prefix: str, size: GroupedAttention, kind: QueryKeyNorm) -> tuple[Weight, ...]:
    """Return q_norm and k_norm; those that stand over several heads are divided with the heads."""
    if kind is QueryKeyNorm.NONE:
        return ()
    weights: list[Weight] = []
    for short, heads in (("q", size.heads), ("k", size.key_value_heads)):
        if kind is QueryKeyNorm.OWN_NORMS:
            names = (f"{prefix}.{short}_layernorm.norms.{head}.weight" for head in range(heads))
            weights.extend(Weight(name=name, shape=(size.head_dim,), part=Part.NORM) for name in names)
            continue
        name = f"{prefix}.{short}_norm.weight"
        if kind is QueryKeyNorm.HEAD:
            weights.append(Weight(name=name, shape=(size.head_dim,), part=Part.NORM))
            continue
        shape = (heads * size.head_dim,) if kind is QueryKeyNorm.WIDTH else (heads, size.head_dim)
        weights.append(Weight(name=name, shape=shape, units=heads, part=Part.NORM, split=Split.COLUMN, dim=0))
    return tuple(weights)


def layer_windows(
    config: ConfigReader,
    windows: Windows,
    *,
    default: int | None = None,
    used_by_default: bool | None = None,
    max_window_layers_default: int = DEFAULT_MAX_WINDOW_LAYERS,
) -> list[int | None]:
    """Return each layer's window, None where it attends to everything.

    A config that leaves `sliding_window` out has the window `default`; one that
    says null has none. Where `use_sliding_window` is left out, the window is
    used unless `used_by_default` is false (by default so for Qwen's rule alone).
    """
    num_layers = config.size("num_hidden_layers", most=MOST_LAYERS)
    layer_types = config.strings("layer_types")
    config.must_be("layer_types", "full_attention", "sliding_attention")
    window = default if config.is_left_out("sliding_window") else config.optional_size("sliding_window")
    border = config.count("max_window_layers", default=max_window_layers_default)
    pattern = config.optional_size("sliding_window_pattern") or (6 if windows is Windows.ALL_BUT_EVERY_SIXTH else 4)
    if used_by_default is None:
        used_by_default = windows is not Windows.FROM_MAX_WINDOW_LAYERS
    enabled = config.flag("use_sliding_window", default=used_by_default)
    if layer_types is not None:
        if len(layer_types) != num_layers:
            raise config.error("layer_types", f"'layer_types' names {len(layer_types)} layers of {num_layers}.")
        return [window if kind == "sliding_attention" else None for kind in layer_types]
    if window is None or not enabled or windows is Windows.NONE:
        return [None] * num_layers
    covered = (_is_windowed(windows, layer, border=border, pattern=pattern) for layer in range(num_layers))
    return [window if is_covered else None for is_covered in covered]


def _is_windowed(windows: Windows, layer: int, *, border: int, pattern: int) -> bool:
    match windows:
        case Windows.ALL_BUT_EVERY_FOURTH | Windows.ALL_BUT_EVERY_SIXTH:
            return (layer + 1) % pattern != 0
        case Windows.EVERY_OTHER:
            return layer % 2 == 0
        case Windows.EVERY_OTHER_BELOW_MAX_WINDOW_LAYERS:
            return layer % 2 == 0 and layer < border
        case Windows.FROM_MAX_WINDOW_LAYERS:
            return layer >= border
        case _:
            return windows is Windows.ALL
