"""What a layer remembers of the sequence while it generates: KV cache, latent or recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KvKind(StrEnum):
    """How a layer's memory of the sequence grows."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL = "chunked_local"
    LATENT = "latent"
    COMPRESSED = "compressed"
    RECURRENT = "recurrent"
    CROSS_ATTENTION = "cross_attention"


# Kinds whose need for room grows with every token.
GROWING = frozenset({KvKind.FULL_ATTENTION, KvKind.LATENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """A state of fixed size: the last inputs of a short convolution, and the recurrence's own memory.

    `convolution_elements` are kept in the activations' format, `memory_elements`
    in fp32 unless the engine is told otherwise. Tensor parallelism divides both.
    """

    convolution_elements: int
    memory_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedState:
    """What grows in a compressed cache: one entry for every `tokens_per_entry` tokens.

    An entry has `entry_width` elements, which are key and value at once, and
    `index_width` elements for the selection of entries; whole on every rank.
    """

    entry_width: int
    index_width: int
    tokens_per_entry: int

    @property
    def elements_per_entry(self) -> int:
        """Return the elements of one entry with its index."""
        return self.entry_width + self.index_width


@dataclass(frozen=True, slots=True, kw_only=True)
class KvState:
    """The cache of one layer.

    Attention keeps `heads` keys of `head_dim` and values of `value_dim` (the same
    unless given) for each token; a `sliding_window` layer never needs more than
    the last `window` tokens and a `chunked_local` one never more than a chunk of
    `window`. A `latent` layer keeps `latent_width` elements a token, whole on
    every tensor-parallel rank (DeepSeek-V2, arXiv:2405.04434, section 2.1), plus
    `index_width` elements for the selection of tokens where attention is sparse.
    A `compressed` layer keeps the last `window` tokens' `latent_width` elements and
    an entry of `compressed` for every few tokens (DeepSeek-V4).
    A `recurrent` layer keeps a state of fixed size and nothing for each token.
    A `cross_attention` layer keeps keys and values of what an encoder made, once for
    a sequence: of `source_tokens`, or of as many as the encoder was given where None.
    """

    kind: KvKind
    heads: int = 0
    head_dim: int = 0
    value_dim: int | None = None
    window: int | None = None
    source_tokens: int | None = None
    latent_width: int = 0
    index_width: int = 0
    compressed: CompressedState | None = None
    recurrent: RecurrentState | None = None

    @property
    def elements_per_head(self) -> int:
        """Return the elements of one head's key and value of one token."""
        return self.head_dim + (self.head_dim if self.value_dim is None else self.value_dim)

    @property
    def elements_per_token(self) -> int:
        """Return what one token adds to the layer's cache, in elements.

        Of a compressed cache that is its share of an entry, rounded up: the window
        does not grow.
        """
        if self.compressed is not None:
            return -(-self.compressed.elements_per_entry // self.compressed.tokens_per_entry)
        return self.heads * self.elements_per_head + self.latent_width + self.index_width
