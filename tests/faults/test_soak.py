"""Three minutes of the soak; `make soak` makes it a thousand jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import soak

SLICE_SECONDS = 180.0
MORE_JOBS_THAN_FIT = 100_000


@pytest.mark.slow
def test_every_accepted_job_ends_once_through_three_minutes_of_kills(tmp_path: Path):
    report = soak(tmp_path, jobs=MORE_JOBS_THAN_FIT, seconds=SLICE_SECONDS, seed=1)
    print(report)
    assert report.books.wrong == []
    assert report.kills
    assert report.books.accepted == report.books.succeeded + report.books.failed_by_policy.total() > 0
