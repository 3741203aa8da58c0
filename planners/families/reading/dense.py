"""The reader of dense decoders: attention, feed-forward, norms, in the arrangement a family chose.

Most families differ only in what is listed by `DenseDecoder`; each is one entry
of `dense_families.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

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
    norm_weights,
    with_norms_scaling_in_fp32,
)
from plimsoll.planners.architecture.feed_forward import fused_gated_weights, gated_weights, plain_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.attention import (
    QueryKeyNorm,
    query_key_norm_weights,
    read_attention,
    with_query_key_norm,
)
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions
from plimsoll.planners.families.reading.sublayers import ATTENTION, LAYER
from plimsoll.planners.families.reading.windows import Windows, layer_windows


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
        attention = read_attention(
            config,
            head_dim_default=self.head_dim_default,
            key_value_heads_default=self.key_value_heads_default,
        )
        has_norm = self.query_key_norm_switch is None or config.flag(self.query_key_norm_switch, default=False)
        norm = self.query_key_norm if has_norm else QueryKeyNorm.NONE
        layer = _Layer(
            family=self,
            attention=dataclasses.replace(
                with_query_key_norm(attention, norm), rotation_concatenates=self.rotation_concatenates
            ),
            intermediate_size=config.size("intermediate_size"),
            qkv_bias=self.qkv_bias.read(config),
            output_bias=self.output_bias.read(config),
            feed_forward_bias=self.feed_forward_bias.read(config),
            query_key_norm=norm,
            is_parallel=self.norms is NormPlacement.PARALLEL
            or (self.parallel_switch is not None and config.flag(self.parallel_switch, default=False)),
        )
        config.must_be("use_bidirectional_attention", False)
        if self.query_key_norm_switch != PHIS_QUERY_KEY_NORM:
            config.must_be(PHIS_QUERY_KEY_NORM, False)
        config.ignore("hidden_act", *self.ignored)
        model = decoder_model(
            config,
            attention=attention,
            layers=blocks_by_kind(layer_windows(config, self.windows, default=self.window_default), layer.block),
            tied=config.flag("tie_word_embeddings", default=self.tied_by_default),
            names=self.names,
            norm_bias=self.norm_bias,
            has_norm_weight=self.has_norm_weight,
            head_bias=self.head_bias,
            assumptions=multi_token_assumptions(config, *self.multi_token_keys) if self.multi_token_keys else (),
        )
        return with_norms_scaling_in_fp32(model) if self.norms_scale_in_fp32 else model


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
        family, size = self.family, self.attention.with_window(window)
        gated = family.feed_forward is not FeedForward.PLAIN
        norm_names = family.norm_names[:1] if self.is_parallel else family.norm_names
        norms = (norm_weights(f"{LAYER}.{name}", size.hidden_size, bias=family.norm_bias) for name in norm_names)
        return decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            feed_forward=feed_forward_half(size.hidden_size, self.intermediate_size, gated=gated),
            kv=size.kv_state(),
            norms=NormPlacement.PARALLEL if self.is_parallel else family.norms,
            weights=(
                *self._attention_weights(),
                *self._feed_forward_weights(),
                *(chain.from_iterable(norms) if family.has_norm_weight else ()),
            ),
        )

    def _attention_weights(self) -> tuple[Weight, ...]:
        family, size = self.family, self.attention
        if family.has_fused_projections:
            return (
                *query_key_value_weights((f"{ATTENTION}.qkv_proj",), size, bias=self.qkv_bias),
                output_projection(f"{ATTENTION}.{family.output_name}.weight", size),
            )
        bias, output_bias, output_name = self.qkv_bias, self.output_bias, family.output_name
        return (
            *separate_projections(ATTENTION, size, qkv_bias=bias, output_bias=output_bias, output_name=output_name),
            *query_key_norm_weights(ATTENTION, size, self.query_key_norm),
        )

    def _feed_forward_weights(self) -> tuple[Weight, ...]:
        prefix, hidden, width = f"{LAYER}.mlp", self.attention.hidden_size, self.intermediate_size
        match self.family.feed_forward:
            case FeedForward.PLAIN:
                return plain_weights(prefix, hidden, width, names=self.family.plain_names, bias=self.feed_forward_bias)
            case FeedForward.FUSED_GATED:
                return fused_gated_weights(prefix, hidden, width)
            case _:
                return gated_weights(prefix, hidden, width, bias=self.feed_forward_bias)
