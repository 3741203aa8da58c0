"""The threads that searches run in: a few, each for as long as somebody may wait, and none that would come too late.

Planning is Python and numpy: more searches at once only make each slower. What would have to wait long for its turn is
refused at once, so that a load beyond what can be carried does not slow everyone.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from planners.errors import PlanningStopped, PlimsollError
from planners.stopping import ShouldStop
from service.errors import Overloaded

MOST_AT_ONCE = 4
LONGEST_WAIT_FRACTION = 0.1
"""Of the time that a request may take, what it waits for its turn at most: of 30 s, what a scheduler's own time-out
bears. Some hundred small searches that come at once are still all answered."""
LATEST_SHARE = 0.1
"""What the latest search counts for in their mean time, and in that between ends: ten or twenty of them make it."""


class PlanningTimedOut(PlimsollError):
    """The search took longer than a request may."""

    code = "planning-timed-out"


class PlanningThreads:
    """Runs searches in turn."""

    def __init__(self, timeout_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="planning")
        self._under_way = 0
        self._mean_seconds = 0.0
        # Between two ends while all threads are busy. Small searches end one after the other, and not four at once:
        # each runs through before the interpreter turns to the next.
        self._turn_seconds: float | None = None
        self._busy_since: float | None = None

    async def run(self, work: Callable[[ShouldStop], Any]) -> Any:
        """Return what the work does in a thread; raises PlanningTimedOut, and Overloaded where its turn comes late."""
        self._refuse_what_comes_late()
        deadline = self._clock() + self._timeout_seconds

        def is_late() -> bool:
            return self._clock() >= deadline

        # A thread cannot be stopped from outside: it keeps its turn until it asks whether it is late.
        in_context = contextvars.copy_context().run
        under_way = asyncio.get_running_loop().run_in_executor(self._threads, in_context, self._timed, work, is_late)
        self._under_way += 1
        under_way.add_done_callback(self._note_end)
        try:
            return await asyncio.wait_for(asyncio.shield(under_way), self._timeout_seconds)
        except (TimeoutError, PlanningStopped) as error:
            raise PlanningTimedOut(
                f"No plan was found within {self._timeout_seconds:g} s. Fix some of the layout, or name the number "
                "of GPUs."
            ) from error

    def _refuse_what_comes_late(self) -> None:
        ahead = max(0, self._under_way + 1 - MOST_AT_ONCE)
        wait_seconds = ahead * max(self._mean_seconds / MOST_AT_ONCE, self._turn_seconds or 0.0)
        if wait_seconds > LONGEST_WAIT_FRACTION * self._timeout_seconds:
            raise Overloaded(waiting=ahead, retry_after_seconds=math.ceil(wait_seconds))

    def _timed(self, work: Callable[[ShouldStop], Any], is_late: ShouldStop) -> Any:
        # Nobody waits any more for what had no turn until now.
        if is_late():
            raise PlanningStopped
        began_at = self._clock()
        try:
            return work(is_late)
        finally:
            self._mean_seconds += LATEST_SHARE * (self._clock() - began_at - self._mean_seconds)

    def _note_end(self, done: asyncio.Future[Any]) -> None:
        now = self._clock()
        if self._busy_since is not None:
            turn = now - self._busy_since
            before = turn if self._turn_seconds is None else self._turn_seconds
            self._turn_seconds = before + LATEST_SHARE * (turn - before)
        self._under_way -= 1
        self._busy_since = now if self._under_way >= MOST_AT_ONCE else None
        # Taken note of: asyncio would report an error as lost once nobody waits any more.
        if not done.cancelled():
            done.exception()
