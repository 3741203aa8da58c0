"""A minute of the soak, or three; `make soak` makes it a thousand jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import soak

MORE_JOBS_THAN_FIT = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [60.0, pytest.param(180.0, marks=pytest.mark.faults)])
def test_every_accepted_job_ends_once_through_minutes_of_kills(tmp_path: Path, seconds: float):
    report = soak(tmp_path, jobs=MORE_JOBS_THAN_FIT, seconds=seconds, seed=1)
    print(report)
    assert report.books.wrong == []
    assert report.kills
    assert report.books.accepted == report.books.succeeded + report.books.failed_by_policy.total() > 0
