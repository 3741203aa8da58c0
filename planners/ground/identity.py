"""Keys of caches that stand for an object itself: hashing a model's description costs more than most sums over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity(Generic[T]):
    """A value as a cache's key, equal to itself alone; the key keeps the value alive, so that no other takes its id."""

    value: T

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value
