"""What asks the database at the moment, so that closing it strands no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plimsoll.service.ground.errors import DatabaseUnavailable

LONGEST_END_SECONDS = 5.0
"""How long closing waits for a server that hangs; the process ends then all the same."""


class UnderWay:
    """Counts those who ask, on one event loop.

    What a task asks while connections are being closed would come back to nobody who closes it, or open another.
    """

    def __init__(self) -> None:
        self._count = 0
        self._is_ended = False
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one who asks; raises DatabaseUnavailable once all was ended."""
        if self._is_ended:
            raise DatabaseUnavailable("The service stopped.")
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    async def end(self, *, most_seconds: float = LONGEST_END_SECONDS) -> None:
        """Let nobody ask any more, and wait for those who do."""
        self._is_ended = True
        with suppress(TimeoutError):
            async with asyncio.timeout(most_seconds):
                await self._none.wait()
