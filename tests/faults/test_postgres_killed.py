"""Postgres killed with -9, in the middle of a transaction and for half a minute."""

from __future__ import annotations

import os
import signal
import time

import psycopg
import pytest

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import NewJob
from plimsoll.service.running.postgres.embedded import EmbeddedPostgres
from tests.faults.books import is_settled, settle
from tests.faults.client import Accepted
from tests.faults.load import loaded
from tests.faults.processes import Parts, address, is_ready, wait_for
from tests.faults.test_worker_killed import Breakpoints

AWAY_SECONDS = 30.0


def kill(server: EmbeddedPostgres) -> None:
    """Kill the postmaster; its children see it and go."""
    process_id = server.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    wait_for(lambda: server.process_id is None)


async def test_a_backend_killed_while_it_commits_a_result(own_parts: Parts):
    notes, until = own_parts.folder / "notes", own_parts.folder / "until"
    new = NewJob(kind="quantize", queue="cpu", request={"notes": str(notes), "until": str(until), "seed": 7})
    async with Database(own_parts.database_url) as database:
        job = await database.jobs.submit(new, idempotency_key=None, route="/quantize")
    at = Breakpoints(own_parts.database_url, job, notes)
    worker = own_parts.worker("wait")
    wait_for(at.has_progress, lambda: worker.log)
    holder = psycopg.connect(libpq_url(own_parts.database_url))
    holder.execute("SELECT 1 FROM jobs WHERE job_id = %s FOR UPDATE", (job.job_id,))
    until.touch()
    wait_for(lambda: at.is_waiting("FOR UPDATE"), lambda: worker.log)
    # A backend that dies takes all others with it: the postmaster cannot know what it left in shared memory.
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%FOR UPDATE%%' LIMIT 1"
    os.kill(int(str(at.ask(query))), signal.SIGKILL)
    holder.close()
    wait_for(lambda: is_settled(own_parts.database_url), lambda: worker.log)
    books = settle(own_parts.database_url, Accepted(jobs={job.job_id: 7}))
    assert (books.wrong, books.succeeded) == ([], 1)
    # The worker held on to the result meanwhile: it was not worked out again.
    assert notes.read_text() == "begun\n"


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [1.0, AWAY_SECONDS])
def test_a_server_killed_under_load(own_server: EmbeddedPostgres, own_parts: Parts, seconds: float):
    worker = own_parts.worker(concurrency=2)
    api = own_parts.api()
    wait_for(lambda: is_ready(api), lambda: api.log)
    with loaded(address(api), clients=3, jobs=60) as (load, accepted):
        wait_for(lambda: len(accepted.jobs) >= 15 or load.errors, lambda: api.log)
        kill(own_server)
        time.sleep(seconds)
        assert not is_ready(api)
        own_server.start()
        back_at = time.monotonic()
        wait_for(lambda: is_ready(api), lambda: api.log)
        ready_seconds = time.monotonic() - back_at
        wait_for(load.is_done, lambda: api.log)
    assert load.errors == []
    wait_for(lambda: is_settled(own_parts.database_url), lambda: worker.log)
    books = settle(own_parts.database_url, accepted)
    print(f"Postgres away for {seconds:g} s: {books}; {len(accepted.plans)} plans; ready after {ready_seconds:.1f} s")
    assert books.wrong == []
