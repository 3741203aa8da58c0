"""A cached value that is read anew before it is too old, once at a time, however many want it.

Where each who finds it too old reads it for itself, a load that arrives while the first still reads makes as many
queries as it has requests, and these take the longer the more there are: every few seconds everyone stands still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

AHEAD_FRACTION = 0.5
"""Of the age that a value may have, what it has when it is read anew: before anybody must wait for that."""


class CachedValue(Generic[Value]):
    """A value that is never older than a given time, on one event loop."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Value]],
        *,
        most_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read with `read`, whose errors whoever has to wait for it raises."""
        self._read = read
        self._most_seconds = most_seconds
        self._clock = clock
        self._known: tuple[float, Value] | None = None
        self._reading: asyncio.Task[Value] | None = None

    async def get(self) -> Value:
        """Return the value as it was at most that long ago."""
        if self._known is not None:
            read_at, value = self._known
            age_seconds = self._clock() - read_at
            if age_seconds > AHEAD_FRACTION * self._most_seconds:
                self._begin_to_read()
            if age_seconds <= self._most_seconds:
                return value
        return await asyncio.shield(self._begin_to_read())

    def forget(self) -> None:
        """Have it read anew for whoever asks next: what is being read may be from before."""
        self._known = None
        self._reading = None

    def _begin_to_read(self) -> asyncio.Task[Value]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._noted(self._clock()), name="known anew")
            self._reading.add_done_callback(self._end)
        return self._reading

    async def _noted(self, began_at: float) -> Value:
        value = await self._read()
        if self._reading is asyncio.current_task():
            self._known = (began_at, value)
        return value

    def _end(self, done: asyncio.Task[Value]) -> None:
        if self._reading is done:
            self._reading = None
        # Who waits for it raises it. Where nobody does, the value is young enough still, and the next one reads again.
        if not done.cancelled():
            done.exception()
