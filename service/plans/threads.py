"""The threads that searches run in: a few, each for as long as somebody may wait, and none that would come too late.

Planning is Python and numpy: more searches at once only make each slower. What would have to wait long for its turn is
refused at once, so that a load beyond what can be carried does not slow everyone. Each caller has a share of the
threads, and is told of its own load: the long searches of one neither wait before another's nor count as its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.ground.figures import figure
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.service.access.rate_limits import MOST_CALLERS
from plimsoll.service.access.shares import Turns
from plimsoll.service.ground.errors import Overloaded, SearchLimitReached
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.ground.settings import PLANNING_THREADS

LONGEST_WAIT_FRACTION = 0.1
"""Of the time that a request may take, what it waits for its turn at most: of 30 s, what a scheduler's own time-out
bears. Some hundred small searches that come at once are still all answered."""
LATEST_SHARE = 0.1
"""What the latest search counts for in their mean time, and in that between ends: ten or twenty of them make it."""


class PlanningTimedOut(PlimsollError):
    """The search took longer than a request may."""

    code = "planning-timed-out"


class _Pace:
    """How fast searches end, all or one caller's, in so many threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._mean_seconds = 0.0
        # Between two ends while all threads are busy. Small searches end one after the other, and not all at once:
        # each runs through before the interpreter turns to the next.
        self._turn_seconds: float | None = None
        self._busy_since: float | None = None

    @property
    def seconds_between(self) -> float:
        """Return the time from one turn to the next while searches wait; 0 before anything is known."""
        return max(self._mean_seconds / self._threads, self._turn_seconds or 0.0)

    def note_search(self, seconds: float) -> None:
        """Take note of how long a search took."""
        self._mean_seconds += LATEST_SHARE * (seconds - self._mean_seconds)

    def note_end(self, now: float, *, under_way: int) -> None:
        """Take note of an end, and of how many are still under way."""
        if self._busy_since is not None:
            turn = now - self._busy_since
            before = turn if self._turn_seconds is None else self._turn_seconds
            self._turn_seconds = before + LATEST_SHARE * (turn - before)
        self._busy_since = now if under_way >= self._threads else None


class PlanningThreads:
    """Runs searches in turn."""

    def __init__(
        self,
        timeout_seconds: float,
        *,
        most_of_one: int,
        most_waiting_of_one: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Give one caller so many of the threads at most, and let so many more searches of its own wait."""
        self._timeout_seconds = timeout_seconds
        self._most_of_one = most_of_one
        self._most_waiting_of_one = most_waiting_of_one
        self._clock = clock
        self._threads = ThreadPoolExecutor(PLANNING_THREADS, thread_name_prefix="planning")
        self._turns = Turns(PLANNING_THREADS, most_of_one=most_of_one)
        self._pace = _Pace(PLANNING_THREADS)
        self._paces: RecentlyUsed[str, _Pace] = RecentlyUsed(MOST_CALLERS)

    async def run(self, work: Callable[[ShouldStop], Any], *, asked_by: str = "") -> Any:
        """Return what the work does in a thread.

        Raises PlanningTimedOut, Overloaded where its turn comes late, and SearchLimitReached where as many of the
        same caller's wait already as may.
        """
        own_pace = self._paces.get(asked_by) or _Pace(self._most_of_one)
        self._paces.put(asked_by, own_pace)
        position = self._turns.position(asked_by)
        others = self._turns.others_before(asked_by, position)
        self._refuse_what_comes_late(asked_by, position, others=others)
        deadline = self._clock() + self._timeout_seconds

        def is_late() -> bool:
            return self._clock() >= deadline

        # A thread cannot be stopped from outside: it keeps its turn until it asks whether it is late.
        turn = self._turns.ask(asked_by)
        under_way = asyncio.ensure_future(self._in_turn(turn, asked_by, own_pace, work, is_late))
        # Taken note of: asyncio would report an error as lost once nobody waits any more.
        under_way.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.shield(under_way)
        except (TimeoutError, PlanningStopped) as error:
            raise PlanningTimedOut(
                f"No plan was found within {figure(self._timeout_seconds)} s. Fix some of the layout, or name the "
                "number of GPUs."
            ) from error

    def check_room(self, asked_by: str) -> None:
        """Raise Overloaded or SearchLimitReached, as `run` would, where those of the caller's own that wait suffice."""
        self._refuse_what_comes_late(asked_by, self._turns.position(asked_by), others=0)

    def _refuse_what_comes_late(self, asked_by: str, position: int, *, others: int) -> None:
        own_pace = self._paces.get(asked_by)
        own_seconds = 0.0 if own_pace is None else position * own_pace.seconds_between
        wait_seconds = max(own_seconds, others * self._pace.seconds_between)
        retry_after_seconds = max(1, math.ceil(wait_seconds))
        if position > self._most_waiting_of_one:
            raise SearchLimitReached(limit=self._most_waiting_of_one, retry_after_seconds=retry_after_seconds)
        if wait_seconds > LONGEST_WAIT_FRACTION * self._timeout_seconds:
            raise Overloaded(waiting=position + others, retry_after_seconds=retry_after_seconds)

    async def _in_turn(
        self,
        turn: asyncio.Future[None],
        asked_by: str,
        own_pace: _Pace,
        work: Callable[[ShouldStop], Any],
        is_late: ShouldStop,
    ) -> Any:
        try:
            await turn
            in_context = contextvars.copy_context().run
            in_thread = functools.partial(in_context, self._timed, work, is_late, own_pace)
            return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)
        finally:
            self._turns.end(asked_by, turn)
            now = self._clock()
            self._pace.note_end(now, under_way=self._turns.under_way())
            own_pace.note_end(now, under_way=self._turns.under_way(asked_by))

    def _timed(self, work: Callable[[ShouldStop], Any], is_late: ShouldStop, own_pace: _Pace) -> Any:
        # Nobody waits any more for what had no turn until now.
        if is_late():
            raise PlanningStopped
        began_at = self._clock()
        try:
            return work(is_late)
        finally:
            seconds = self._clock() - began_at
            self._pace.note_search(seconds)
            own_pace.note_search(seconds)
