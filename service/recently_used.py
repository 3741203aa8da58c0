"""A bounded memory of what was used last."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """Keeps at most `most` values and forgets the one that was longest unused; safe between threads.

    With `seconds`, a value is also forgotten that long after it was put, however often it was used.
    """

    def __init__(self, most: int, *, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._values: OrderedDict[Key, tuple[Value, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return the value, and count it as used now; None where it is unknown or forgotten."""
        with self._lock:
            kept = self._values.get(key)
            if kept is None:
                return None
            value, put_at = kept
            if self._seconds is not None and self._clock() - put_at > self._seconds:
                del self._values[key]
                return None
            self._values.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Remember a value."""
        with self._lock:
            self._values[key] = (value, self._clock())
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
