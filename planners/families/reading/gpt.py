"""The reader of GPT-like decoders: LayerNorm, a feed-forward without a gate, one layout of weights a family.

Each family is one entry of `gpt_families.py`; Falcon, MPT and OPT choose their
layout by switches of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plimsoll.planners.architecture.attention import GroupedAttention, output_projection, query_key_value_weights
from plimsoll.planners.architecture.decoder import (
    NormPlacement,
    attention_half,
    decoder_layer,
    feed_forward_half,
    norm_weights,
)
from plimsoll.planners.architecture.feed_forward import feed_forward_column, feed_forward_row
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader

FEED_FORWARD_MULTIPLE = 4  # Vaswani et al. 2017 (arXiv:1706.03762), section 3.3


@dataclass(frozen=True, slots=True, kw_only=True)
class GptKeys:
    """Under which names a family's config has its sizes; the first that is there counts.

    `inner` is empty where the feed-forward is always four times as wide as the
    model; `positions_default` is the config class's own.
    """

    hidden: tuple[str, ...] = ("n_embd", "hidden_size")
    layers: tuple[str, ...] = ("n_layer", "num_hidden_layers")
    heads: tuple[str, ...] = ("n_head", "num_attention_heads")
    inner: tuple[str, ...] = ("n_inner",)
    positions: tuple[str, ...] = ("n_positions", "max_position_embeddings")
    positions_default: int | None = None

    def read_positions(self, config: ConfigReader) -> int | None:
        """Return how many positions there are, None where neither config nor class says."""
        key = config.named(*self.positions)
        if self.positions_default is None:
            return config.optional_size(key)
        return config.size(key, default=self.positions_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptDecoder:
    """What a family calls its weights and which of them it has.

    `query_key_value` has one name where one matrix holds all three, else three.
    `position_name` is the table of learned positions, which has
    `position_offset` rows more than there are positions; None where positions are
    rotary or a bias on the scores. `embedding_norm` stands between embedding and
    first layer. `rotation_concatenates`: see `Operation.concatenates`.
    """

    keys: GptKeys = field(default_factory=GptKeys)
    layer: str = "transformer.h.{layer}"
    query_key_value: tuple[str, ...]
    output: str
    feed_forward: tuple[str, str]
    norm_names: tuple[str, ...] = ("ln_1", "ln_2")
    norms: NormPlacement = NormPlacement.PRE
    names: DecoderNames
    qkv_bias: bool = True
    output_bias: bool = True
    feed_forward_bias: bool = True
    norm_bias: bool = True
    has_norm_weight: bool = True
    has_final_norm: bool = True
    head_bias: bool = False
    has_rotary: bool = False
    rotation_concatenates: bool = False
    is_bidirectional: bool = False
    position_name: str | None = None
    position_offset: int = 0
    embedding_norm: str | None = None
    tied_by_default: bool = True
    ignored: tuple[str, ...] = ()

    def __call__(
        self,
        config: ConfigReader,
        *,
        key_value_heads: int | None = None,
        windows: Callable[[ConfigReader, int], list[int | None]] | None = None,
    ) -> ModelSpec:
        """Return the description of a model of this form.

        `key_value_heads` of None are as many as query heads; `windows` returns each
        layer's window, given the number of layers.
        """
        keys = self.keys
        hidden_size = config.size(config.named(*keys.hidden))
        heads_key = config.named(*keys.heads)
        heads = config.size(heads_key)
        config.must_divide(heads_key, heads, keys.hidden[0], hidden_size)
        num_layers = config.size(config.named(*keys.layers), most=MOST_LAYERS)
        multiple = FEED_FORWARD_MULTIPLE * hidden_size
        attention = GroupedAttention(
            hidden_size=hidden_size,
            heads=heads,
            key_value_heads=key_value_heads or heads,
            head_dim=hidden_size // heads,
            has_rotary=self.has_rotary,
            rotation_concatenates=self.rotation_concatenates,
            is_bidirectional=self.is_bidirectional,
        )
        layers = _Layers(
            family=self,
            attention=attention,
            intermediate_size=config.size(config.named(*keys.inner), default=multiple) if keys.inner else multiple,
        )
        positions = keys.read_positions(config)
        config.ignore(*self.ignored)
        return decoder_model(
            config,
            attention=attention,
            layers=blocks_by_kind(windows(config, num_layers) if windows else [None] * num_layers, layers.block),
            tied=config.flag("tie_word_embeddings", default=self.tied_by_default),
            names=self.names,
            norm_bias=self.norm_bias,
            has_norm_weight=self.has_norm_weight,
            has_final_norm=self.has_final_norm,
            head_bias=self.head_bias,
            max_position_embeddings=positions,
            other_embeddings=self._other_embeddings(hidden_size, positions),
        )

    def _other_embeddings(self, hidden_size: int, positions: int | None) -> tuple[Weight, ...]:
        """Return the learned positions and the embedding's norm, where there are any."""
        norm = norm_weights(self.embedding_norm, hidden_size, bias=True) if self.embedding_norm else ()
        if self.position_name is None or positions is None:
            return norm
        shape = (positions + self.position_offset, hidden_size)
        return (Weight(name=self.position_name, shape=shape, part=Part.EMBEDDING), *norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """The layers of one model of a family."""

    family: GptDecoder
    attention: GroupedAttention
    intermediate_size: int

    def block(self, indices: tuple[int, ...], window: int | None) -> Block:
        """Return the layers at `indices`, which look back over `window` tokens."""
        size = self.attention.with_window(window)
        return decoder_layer(
            layers=indices,
            hidden_size=size.hidden_size,
            mixer=attention_half(size),
            feed_forward=feed_forward_half(size.hidden_size, self.intermediate_size, gated=False),
            kv=None if size.is_bidirectional else size.kv_state(),
            norms=self.family.norms,
            kind="encoder_layer" if size.is_bidirectional else "decoder_layer",
            weights=(*self._attention_weights(), *self._feed_forward_weights(), *self._norm_weights()),
        )

    def _attention_weights(self) -> tuple[Weight, ...]:
        family, size = self.family, self.attention
        output = f"{family.layer}.{family.output}"
        bias = (Weight(name=f"{output}.bias", shape=(size.hidden_size,), part=Part.ATTENTION),)
        return (
            *query_key_value_weights(
                tuple(f"{family.layer}.{name}" for name in family.query_key_value), size, bias=family.qkv_bias
            ),
            output_projection(f"{output}.weight", size),
            *(bias if family.output_bias else ()),
        )

    def _feed_forward_weights(self) -> tuple[Weight, ...]:
        family, hidden, inner = self.family, self.attention.hidden_size, self.intermediate_size
        first, second = (f"{family.layer}.{name}" for name in family.feed_forward)
        matrices = (
            feed_forward_column(f"{first}.weight", (inner, hidden), dim=0, is_linear=True),
            feed_forward_row(f"{second}.weight", (hidden, inner), dim=1),
        )
        biases = (
            feed_forward_column(f"{first}.bias", (inner,), dim=0),
            Weight(name=f"{second}.bias", shape=(hidden,), part=Part.FEED_FORWARD),
        )
        return (*matrices, *biases) if family.feed_forward_bias else matrices

    def _norm_weights(self) -> tuple[Weight, ...]:
        if not self.family.has_norm_weight:
            return ()
        return tuple(
            weight
            for name in self.family.norm_names
            for weight in norm_weights(
                f"{self.family.layer}.{name}", self.attention.hidden_size, bias=self.family.norm_bias
            )
        )
