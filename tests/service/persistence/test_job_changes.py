from __future__ import annotations

import asyncio

import psycopg

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.job_changes import Watch
from tests.service.persistence.factories import a_job


async def listening(watch: Watch) -> None:
    """Take in the first notice, which says that the connection listens."""
    assert await watch.wait(timeout_seconds=60)


async def test_a_change_is_heard(database):
    job = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    with database.job_changes.watch(job.job_id) as watch:
        await listening(watch)
        await database.jobs.begin_attempt(job.job_id, "worker")
        assert await watch.wait(timeout_seconds=60)


async def test_the_change_of_another_job_is_not_heard(database):
    one = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    other = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    with database.job_changes.watch(one.job_id) as watch:
        await listening(watch)
        await database.jobs.begin_attempt(other.job_id, "worker")
        assert not await watch.wait(timeout_seconds=0.2)


async def test_a_change_between_two_waits_is_heard(database):
    job = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    with database.job_changes.watch(job.job_id) as watch:
        await listening(watch)
        await database.jobs.begin_attempt(job.job_id, "worker")
        await asyncio.sleep(0.1)
        assert await watch.wait(timeout_seconds=0)


async def test_a_lost_connection_is_made_again(database, database_url):
    job = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    with database.job_changes.watch(job.job_id) as watch:
        await listening(watch)
        with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        await listening(watch)
        await database.jobs.begin_attempt(job.job_id, "worker")
        assert await watch.wait(timeout_seconds=60)
