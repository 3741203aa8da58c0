"""A bounded memory of what was used last."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Value]):
    value: Value
    put_at: float
    size_bytes: int


class RecentlyUsed(Generic[Key, Value]):
    """Keeps at most `most` values and forgets the one that was longest unused; safe between threads.

    With `seconds`, a value is also forgotten that long after it was put, however often it was used. With `most_bytes`,
    all values together take no more than that by `size_bytes`; one that is larger by itself is not kept.
    """

    def __init__(
        self,
        most: int,
        *,
        seconds: float | None = None,
        most_bytes: int | None = None,
        size_bytes: Callable[[Value], int] = lambda _: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._size_bytes = size_bytes
        self._clock = clock
        self._values: OrderedDict[Key, _Kept[Value]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return the value, and count it as used now; None where it is unknown or forgotten."""
        with self._lock:
            kept = self._values.get(key)
            if kept is None:
                return None
            if self._seconds is not None and self._clock() - kept.put_at > self._seconds:
                self._forget(key)
                return None
            self._values.move_to_end(key)
            return kept.value

    def put(self, key: Key, value: Value) -> None:
        """Remember a value."""
        kept = _Kept(value, self._clock(), self._size_bytes(value))
        with self._lock:
            if key in self._values:
                self._forget(key)
            self._values[key] = kept
            self._kept_bytes += kept.size_bytes
            while len(self._values) > self._most or self._is_too_large():
                self._forget(next(iter(self._values)))

    def _is_too_large(self) -> bool:
        return self._most_bytes is not None and self._kept_bytes > self._most_bytes

    def _forget(self, key: Key) -> None:
        self._kept_bytes -= self._values.pop(key).size_bytes
