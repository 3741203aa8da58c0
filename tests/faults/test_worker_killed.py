"""A worker killed with -9 at each step of a job's life: the job is done by the next one, once.

A row lock held by the test is the breakpoint: the worker's statement waits for it, and is killed waiting.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import Job, NewJob
from tests.faults.books import is_settled, settle
from tests.faults.client import Accepted
from tests.faults.processes import Parts, wait_for

_WAITING_FOR_A_LOCK = """
    SELECT count(*) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE %s
"""


class Breakpoints:
    """Where the worker is to be caught: at the job's row, at the queue's row, or at a mark that it left."""

    def __init__(self, url: str, job: Job, notes: Path) -> None:
        self._url = libpq_url(url)
        self._job = job
        self._notes = notes

    def ask(self, query: str, *values: object) -> object:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(query, values).fetchone()
        return row[0] if row else None

    @contextmanager
    def held(self, table: str, column: str, value: object) -> Iterator[None]:
        """Hold a row's lock."""
        with psycopg.connect(self._url) as connection:
            connection.execute(f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE", (value,))  # noqa: S608
            yield

    def job_row_held(self) -> AbstractContextManager[None]:
        return self.held("jobs", "job_id", self._job.job_id)

    def queue_row_held(self) -> AbstractContextManager[None]:
        return self.held("procrastinate_jobs", "id", self._job.queue_job_id)

    def is_waiting(self, part_of_query: str) -> bool:
        return bool(self.ask(_WAITING_FOR_A_LOCK, f"%{part_of_query}%"))

    def is_fetched(self) -> bool:
        return self.ask("SELECT status::text FROM procrastinate_jobs WHERE id = %s", self._job.queue_job_id) == "doing"

    def state(self) -> object:
        return self.ask("SELECT state FROM jobs WHERE job_id = %s", self._job.job_id)

    def has_progress(self) -> bool:
        return self.ask("SELECT progress FROM jobs WHERE job_id = %s", self._job.job_id) is not None

    def child_has_begun(self) -> bool:
        return self._notes.exists()


Step = Callable[[Parts, Breakpoints, Path], None]


def fetched_but_not_begun(parts: Parts, at: Breakpoints, until: Path) -> None:
    with at.job_row_held():
        worker = parts.worker("wait")
        wait_for(at.is_fetched, lambda: worker.log)
        wait_for(lambda: at.is_waiting("FROM jobs"), lambda: worker.log)
        worker.kill()


def begun_but_no_child_yet(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    # The child's interpreter alone takes longer than this look.
    wait_for(lambda: at.state() == "running", lambda: worker.log)
    worker.kill()


def child_has_started(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    wait_for(at.child_has_begun, lambda: worker.log)
    worker.kill()


def progress_is_written(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    worker.kill()


def being_handed_back(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    with at.job_row_held():
        assert worker.process is not None
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "job's child ended" in worker.log, lambda: worker.log)
        wait_for(lambda: at.is_waiting("FOR UPDATE"), lambda: worker.log)
        worker.kill()


def result_is_there_and_being_committed(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    with at.job_row_held():
        until.touch()
        wait_for(lambda: "job's child ended" in worker.log, lambda: worker.log)
        wait_for(lambda: at.is_waiting("FOR UPDATE"), lambda: worker.log)
        worker.kill()


def committed_but_still_in_the_queue(parts: Parts, at: Breakpoints, until: Path) -> None:
    worker = parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    with at.queue_row_held():
        until.touch()
        wait_for(lambda: at.state() == "succeeded", lambda: worker.log)
        wait_for(lambda: at.is_waiting("procrastinate_finish_job_v1"), lambda: worker.log)
        worker.kill()


@pytest.mark.parametrize(
    ("step", "children"),
    [
        pytest.param(fetched_but_not_begun, 1, marks=pytest.mark.faults),
        pytest.param(begun_but_no_child_yet, None, marks=pytest.mark.faults),
        pytest.param(child_has_started, 2, marks=pytest.mark.faults),
        pytest.param(progress_is_written, 2, marks=pytest.mark.faults),
        pytest.param(being_handed_back, 2, marks=pytest.mark.faults),
        (result_is_there_and_being_committed, 2),
        (committed_but_still_in_the_queue, 1),
    ],
)
async def test_a_worker_killed_at_this_step(step: Step, children: int | None, database: Database, parts: Parts):
    notes, until = parts.folder / "notes", parts.folder / "until"
    new = NewJob(kind="quantize", queue="cpu", request={"notes": str(notes), "until": str(until), "seed": 7})
    job = await database.jobs.submit(new, idempotency_key=None, route="/quantize")
    step(parts, Breakpoints(parts.database_url, job, notes), until)
    until.touch()
    killed_at = time.monotonic()
    successor = parts.worker("wait")
    wait_for(lambda: is_settled(parts.database_url), lambda: successor.log)
    print(json.dumps({"fault": f"worker killed: {step.__name__}", "seconds": round(time.monotonic() - killed_at, 1)}))
    books = settle(parts.database_url, Accepted(jobs={job.job_id: 7}))
    assert (books.wrong, books.succeeded) == ([], 1)
    # What was finished is not begun again; what was not is begun once more, and no more.
    if children is not None:
        assert len(notes.read_text().splitlines()) == children


@pytest.mark.faults
async def test_a_worker_killed_before_it_hears_that_the_job_was_cancelled(database: Database, parts: Parts):
    notes, until = parts.folder / "notes", parts.folder / "until"
    new = NewJob(kind="quantize", queue="cpu", request={"notes": str(notes), "until": str(until), "seed": 7})
    job = await database.jobs.submit(new, idempotency_key=None, route="/quantize")
    at = Breakpoints(parts.database_url, job, notes)
    worker = parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    # It hears nothing while it stands still.
    assert worker.process is not None
    worker.process.send_signal(signal.SIGSTOP)
    await database.jobs.request_cancel(job.job_id)
    worker.kill()
    successor = parts.worker("wait")
    wait_for(lambda: is_settled(parts.database_url), lambda: successor.log)
    ended = await database.jobs.get(job.job_id)
    assert (ended.state, ended.attempts, ended.result) == ("cancelled", 1, None)
    assert notes.read_text() == "begun\n"
