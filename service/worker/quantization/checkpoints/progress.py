"""How far a job is: bytes, their recent rate, and the time that is left at it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import duration
from plimsoll.service.worker.quantization.checkpoints.sources import SourceTensor
from plimsoll.service.worker.tasks import Report

BYTES_PER_MEGABYTE = 1e6
# A rate is that of the last half minute, and none is told of less than a second: neither the start of the worker nor
# a matrix that came from a cache says how long the others take.
WINDOW_SECONDS = 30.0
SHORTEST_SECONDS = 1.0
# A job is given up only where it would take so many times its limit: matrices are not all equally fast.
SURELY_TOO_LONG = 1.25


class ByteProgress:
    """Counts the original bytes of finished tensors against a total."""

    def __init__(
        self,
        report: Report,
        total_bytes: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        limit_seconds: float | None = None,
    ) -> None:
        """Begin at 0 and say so; `limit_seconds` are those after which the job is stopped and all of it lost."""
        self._report = report
        self._total_bytes = total_bytes
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._begun_at = clock()
        self._done_bytes = 0
        # The fastest half minute, in bytes a second: a busy machine makes later ones slow, which gives nothing up.
        self._best_rate = 0.0
        # When each recent tensor was finished, and the bytes that were done then.
        self._recent: deque[tuple[float, int]] = deque()
        report(0, total_bytes, "bytes", "begun")

    def advance(self, tensor: SourceTensor) -> None:
        """Count a finished tensor; the first one is where the rate begins.

        Raises `InvalidQuestion` once the rate of the fastest half minute says that the job cannot end within its limit.
        """
        now = self._clock()
        self._done_bytes += tensor.stored_bytes
        self._recent.append((now, self._done_bytes))
        while len(self._recent) > 2 and self._recent[1][0] <= now - WINDOW_SECONDS:
            self._recent.popleft()
        self._report(self._done_bytes, self._total_bytes, "bytes", f"{tensor.name}{self._pace(now)}")

    def skip(self, tensor: SourceTensor) -> None:
        """Count a tensor that an earlier attempt finished: it took no time, and says nothing of the others."""
        self._done_bytes += tensor.stored_bytes
        self._recent.clear()
        self._report(self._done_bytes, self._total_bytes, "bytes", f"{tensor.name}, written before")

    def end(self) -> None:
        """Say that all is done."""
        self._report(self._total_bytes, self._total_bytes, "bytes", "done")

    def _pace(self, now: float) -> str:
        """Return the rate and the time that is left at it, nothing while there is no basis for them."""
        first_at, first_bytes = self._recent[0]
        seconds, done_bytes = now - first_at, self._done_bytes - first_bytes
        if seconds < SHORTEST_SECONDS or not done_bytes:
            return ""
        bytes_per_second = done_bytes / seconds
        left_bytes = self._total_bytes - self._done_bytes
        if seconds >= WINDOW_SECONDS:
            self._best_rate = max(self._best_rate, bytes_per_second)
            self._refuse_too_long(now - self._begun_at + left_bytes / self._best_rate)
        return f", {bytes_per_second / BYTES_PER_MEGABYTE:.0f} MB/s, {left_bytes / bytes_per_second:.0f} s left"

    def _refuse_too_long(self, needed_seconds: float) -> None:
        limit = self._limit_seconds
        if limit is None or needed_seconds <= SURELY_TOO_LONG * limit:
            return
        raise InvalidQuestion(
            f"At {self._best_rate / BYTES_PER_MEGABYTE:.0f} MB/s, as measured on this worker, the weights take "
            f"{duration(needed_seconds)}, and a job may run {duration(limit)}. Raise PLIMSOLL_JOB_TIMEOUT_SECONDS on "
            "the workers, or choose a faster scheme.",
            pointer="/model",
        )
