"""Clocks that jump by hours while jobs run: the worker's and the API's, and the database's."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import NewJob
from plimsoll.service.persistence.upgrade import upgrade
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.faults.books import is_settled, settle
from tests.faults.client import Accepted
from tests.faults.clock import CANNOT_MOVE_CLOCKS, MovedClock, moved_clock
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for
from tests.faults.test_worker_killed import Breakpoints

JOBS = 60
HOURS = 3.0
# Several sweeps of a worker, which comes once a second.
LOOKING_SECONDS = 5.0
# No worker that lives seems dead to another so soon, however busy the machine is; next to the jumps it is nothing.
PATIENT_SECONDS = 20

pytestmark = pytest.mark.skipif(CANNOT_MOVE_CLOCKS is not None, reason=str(CANNOT_MOVE_CLOCKS))


@pytest.fixture
def clock() -> Iterator[MovedClock]:
    with moved_clock() as clock:
        yield clock


@pytest.fixture
def moved_parts(tmp_path: Path, clock: MovedClock) -> Iterator[Parts]:
    """Return processes on a server whose clock can be moved, and whose own clocks cannot."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.variables.items():
            patch.setenv(name, value)
        server = EmbeddedPostgres(tmp_path / "own", durable=False).start()
    parts = Parts(tmp_path, server.url)
    try:
        upgrade(server.url)
        yield parts
    finally:
        parts.stop()
        server.stop()


def database_hours_ahead(url: str) -> float:
    with psycopg.connect(libpq_url(url)) as connection:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert row is not None
    return (float(row[0]) - time.time()) / 3600


def test_the_date_of_a_process_is_moved_and_its_monotonic_clock_is_not(clock: MovedClock):
    clock.jump(HOURS)
    script = "import time, datetime as d; time.sleep(0.01); print([time.time(), d.datetime.now().timestamp()])"
    asked = [sys.executable, "-c", f"{script}; print(time.monotonic())"]
    told = subprocess.run(
        asked, env={**os.environ, **clock.variables}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ahead = [moment - time.time() for moment in json.loads(told[0])]
    assert ahead == pytest.approx([HOURS * 3600] * 2, abs=600)
    assert abs(float(told[1]) - time.monotonic()) < 600


def run_with_jumps(parts: Parts, clock: MovedClock, hours: float) -> None:
    worker = parts.worker(concurrency=2, stalled_after_seconds=PATIENT_SECONDS)
    steady = parts.worker(concurrency=1, stalled_after_seconds=PATIENT_SECONDS)
    api = parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    with loaded(address(api), clients=3, jobs=JOBS) as (load, accepted):
        for share, jump in ((1, hours), (2, 0.0)):
            wait_for(lambda share=share: len(accepted.jobs) >= share * JOBS // 3 or load.errors, lambda: api.log)
            clock.jump(jump)
            # The one that dies just now was last heard in a time to come, or long ago; the other lives on.
            worker.kill()
            worker.start()
        wait_for(load.is_done, lambda: api.log)
    assert load.errors == []
    wait_for(lambda: is_settled(parts.database_url), lambda: worker.log + steady.log)
    books = settle(parts.database_url, accepted)
    print(f"clock jumps by {hours:+g} h and back: {books}")
    assert books.wrong == []
    # A job that dies of itself is begun three times, and each kill costs two more jobs an attempt.
    crashes = sum(seed % 20 == 0 for seed in range(JOBS))
    assert books.begun_again <= crashes + 4


@pytest.mark.faults
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_the_clock_of_api_and_worker_jumps(parts: Parts, clock: MovedClock, hours: float):
    parts.variables.update(clock.variables)
    run_with_jumps(parts, clock, hours)


@pytest.mark.faults
@pytest.mark.parametrize("hours", [HOURS, -HOURS])
def test_the_databases_clock_jumps(moved_parts: Parts, clock: MovedClock, hours: float):
    run_with_jumps(moved_parts, clock, hours)


async def test_a_running_job_is_left_to_its_worker_when_the_databases_clock_jumps(
    moved_parts: Parts, clock: MovedClock
):
    notes, until = moved_parts.folder / "notes", moved_parts.folder / "until"
    new = NewJob(kind="quantize", queue="cpu", request={"notes": str(notes), "until": str(until), "seed": 7})
    async with Database(moved_parts.database_url) as database:
        job = await database.jobs.submit(new, idempotency_key=None, route="/quantize")
    at = Breakpoints(moved_parts.database_url, job, notes)
    worker = moved_parts.worker("wait", stalled_after_seconds=10 * PATIENT_SECONDS)
    wait_for(at.has_progress, lambda: worker.log)
    other = moved_parts.worker("wait", stalled_after_seconds=10 * PATIENT_SECONDS)
    wait_for(lambda: "worker started" in other.log, lambda: other.log)
    for hours in (HOURS, -HOURS, 0.0):
        clock.jump(hours)
        assert database_hours_ahead(moved_parts.database_url) == pytest.approx(hours, abs=0.2)
        await asyncio.sleep(LOOKING_SECONDS)
    until.touch()
    wait_for(lambda: is_settled(moved_parts.database_url), lambda: worker.log + other.log)
    books = settle(moved_parts.database_url, Accepted(jobs={job.job_id: 7}))
    assert (books.wrong, books.succeeded, books.begun_again) == ([], 1, 0)
    assert notes.read_text() == "begun\n"
