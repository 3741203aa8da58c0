"""What the database counts, for those who watch the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import AccuracyGroup, JobOutcomes, JobState, QueueDepth

ACCURACY_SECONDS = 60.0
"""The errors are quantiles over every measurement on record: read once a minute, however often they are scraped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is on record now."""

    jobs_by_state: Mapping[JobState, int]
    queues: tuple[QueueDepth, ...]
    outcomes: tuple[JobOutcomes, ...]
    accuracy: tuple[AccuracyGroup, ...]


class RecordsKept:
    """Reads them."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._accuracy: tuple[AccuracyGroup, ...] = ()
        self._accuracy_until = float("-inf")

    async def read(self) -> Records:
        """Return what is on record; raises DatabaseUnavailable."""
        jobs = self._database.jobs
        if self._clock() >= self._accuracy_until:
            self._accuracy = await self._database.measurements.accuracy()
            self._accuracy_until = self._clock() + ACCURACY_SECONDS
        return Records(
            jobs_by_state=await jobs.counts(),
            queues=await jobs.queue_depths(),
            outcomes=await jobs.outcomes(),
            accuracy=self._accuracy,
        )
