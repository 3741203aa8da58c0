"""What a layer remembers of the sequence while it generates: the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KvKind(StrEnum):
    """How a layer's memory of the sequence grows."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvState:
    """The cache of one attention layer: `heads` keys and values for each token.

    A `sliding_window` layer never needs more than the last `window` tokens.
    """

    kind: KvKind
    heads: int
    head_dim: int
    window: int | None = None

    @property
    def elements_per_token(self) -> int:
        """Return keys and values, in elements, of one token in one layer."""
        return 2 * self.heads * self.head_dim

    def local_elements_per_token(self, tensor_parallel: int) -> int:
        """Return the same on one rank; heads fewer than the ranks are replicated."""
        return 2 * -(-self.heads // tensor_parallel) * self.head_dim
