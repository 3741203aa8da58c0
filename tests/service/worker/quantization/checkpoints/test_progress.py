from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.quantization.checkpoints.progress import ByteProgress

MEGABYTE = 10**6


class Job:
    """A job of 1,000 MB whose clock the test moves."""

    def __init__(self, limit_seconds: float | None = None) -> None:
        self.seconds = 0.0
        self.said: list[str] = []
        self.progress = ByteProgress(self._report, 1_000 * MEGABYTE, lambda: self.seconds, limit_seconds=limit_seconds)

    def _report(self, *call: Any) -> None:
        self.said.append(call[3])

    def finish(self, megabytes: int, *, at: float) -> str:
        self.seconds = at
        self.progress.advance(SimpleNamespace(name="w", stored_bytes=megabytes * MEGABYTE))
        return self.said[-1]


def test_the_start_of_the_worker_is_in_no_rate():
    job = Job()
    # 100 s until the first matrix is done, then 100 MB each second: 800 MB are left, 8 s.
    assert job.finish(100, at=100.0) == "w"
    assert job.finish(100, at=101.0) == "w, 100 MB/s, 8 s left"


def test_no_rate_is_told_of_less_than_a_second():
    job = Job()
    job.finish(100, at=10.0)
    assert job.finish(100, at=10.9) == "w"


def test_the_rate_is_that_of_the_last_half_minute():
    job = Job()
    job.finish(100, at=0.0)
    # 100 MB in the first minute count no more: 300 MB in the 30 s since, and 500 MB are left.
    job.finish(100, at=60.0)
    job.finish(150, at=63.0)
    assert job.finish(150, at=90.0) == "w, 10 MB/s, 50 s left"


@pytest.mark.parametrize("at", [5.0, 500.0])
def test_what_an_earlier_attempt_wrote_took_no_time(at):
    job = Job()
    job.progress.skip(SimpleNamespace(name="w", stored_bytes=500 * MEGABYTE))
    assert job.said[-1] == "w, written before"
    job.finish(100, at=at)
    # 200 MB in 2 s, and 200 MB are left.
    assert job.finish(200, at=at + 2.0) == "w, 100 MB/s, 2 s left"


# 10 MB in the first 10 s, and 30 MB in the 30 s that follow: 960 MB are left, 960 s, and 1,000 s in all.
@pytest.mark.parametrize(("limit_seconds", "goes_on"), [(None, True), (800.0, True), (799.0, False)])
def test_a_job_that_cannot_end_within_its_limit_is_given_up_with_the_way_out(
    limit_seconds: float | None, goes_on: bool
):
    job = Job(limit_seconds)
    job.finish(10, at=10.0)
    if goes_on:
        assert job.finish(30, at=40.0) == "w, 1 MB/s, 960 s left"
        return
    with pytest.raises(InvalidQuestion, match=r"At 1 MB/s, .* PLIMSOLL_JOB_TIMEOUT_SECONDS"):
        job.finish(30, at=40.0)


def test_a_slow_half_minute_after_a_fast_one_gives_nothing_up():
    job = Job(limit_seconds=120.0)
    job.finish(10, at=0.0)
    job.finish(300, at=30.0)
    # At 1 MB/s the 660 MB that are left would take far too long, at the 10 MB/s of before 66 s.
    assert job.finish(30, at=60.0) == "w, 1 MB/s, 660 s left"


def test_a_rate_of_less_than_half_a_minute_gives_nothing_up():
    job = Job(limit_seconds=1.0)
    job.finish(10, at=10.0)
    assert job.finish(29, at=39.0) == "w, 1 MB/s, 961 s left"
