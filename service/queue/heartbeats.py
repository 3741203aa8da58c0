"""Which workers are silent, told by no clock that can be set.

What a worker writes as its heartbeat carries the database's time, and that may jump: ahead, and every worker
seems long dead; back, and a dead one seems alive. So a heartbeat is only compared with itself: one that has not
changed for a while by this process's monotonic clock is that of a worker that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime

LONGEST_STEP_FRACTION = 0.5
"""Of the time after which a worker is silent, what passes between two looks at most, however long they lie apart.

What held this process or the database up may have held up the worker, so that it takes a further look.
"""


class Heartbeats:
    """How long each worker's heartbeat has been as it is."""

    def __init__(self, *, silent_after_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent_after_seconds = silent_after_seconds
        self._clock = clock
        self._looked_at = clock()
        self._watched_seconds = 0.0
        """For how long this looked on; hold-ups are not counted in full."""
        self._since: dict[int, tuple[datetime, float]] = {}

    def silent(self, heard: Mapping[int, datetime]) -> tuple[int, ...]:
        """Take note of every worker's heartbeat, and return the workers whose heartbeat stands still."""
        now = self._clock()
        longest_step = LONGEST_STEP_FRACTION * self._silent_after_seconds
        self._watched_seconds += min(now - self._looked_at, longest_step)
        self._looked_at = now
        self._since = {worker_id: self._kept(worker_id, beat) for worker_id, beat in heard.items()}
        latest = self._watched_seconds - self._silent_after_seconds
        return tuple(worker_id for worker_id, (_, since) in self._since.items() if since <= latest)

    def forget(self) -> None:
        """Begin anew: nobody could be heard meanwhile."""
        self._since.clear()

    def _kept(self, worker_id: int, beat: datetime) -> tuple[datetime, float]:
        before = self._since.get(worker_id)
        return before if before is not None and before[0] == beat else (beat, self._watched_seconds)
