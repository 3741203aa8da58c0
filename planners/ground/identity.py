"""Keys of caches by identity: hashing a whole model's description costs more than most sums that are cached over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity(Generic[T]):
    """A cache's key for one object: another that compares equal is another key.

    The key holds the object, so that no later one gets the same `id`.
    """

    value: T

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value
