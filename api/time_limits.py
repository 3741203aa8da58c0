"""How long an answer may take to begin: the same for every request, watched by one timer for all of them."""

from __future__ import annotations

import asyncio


class TimeLimits:
    """Ends waits that last too long.

    A timer of its own for each request, set and taken back again, would cost more than all else around it.
    """

    def __init__(self, most_seconds: float) -> None:
        self.most_seconds = most_seconds
        # In the order of their ends, as all last alike.
        self._ends: dict[asyncio.Timeout, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begun(self) -> asyncio.Timeout:
        """Return a limit that is to be entered at once, and forgotten in the end."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        self._ends[limit] = loop.time() + self.most_seconds
        # The timer of a loop that has ended never goes off.
        if self._timer is None or loop is not self._loop:
            self._loop = loop
            self._timer = loop.call_later(self.most_seconds, self._end_those_due)
        return limit

    def lift(self, limit: asyncio.Timeout) -> None:
        """Let what has begun take as long as it likes."""
        self.forget(limit)
        # It may have been due a moment ago.
        limit.reschedule(None)

    def forget(self, limit: asyncio.Timeout) -> None:
        """Note that what the limit was for is over."""
        self._ends.pop(limit, None)

    def _end_those_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for limit, end in tuple(self._ends.items()):
            if end > now:
                self._timer = loop.call_at(end, self._end_those_due)
                return
            del self._ends[limit]
            limit.reschedule(now)
