"""Whose rows a worker may change, and what it does while the database is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from procrastinate.jobs import Status

from plimsoll.service.queue.engine import (
    hand_back_stalled_jobs,
)
from plimsoll.service.queue.fencing import WorkerForgotten
from plimsoll.service.queue.heartbeats import Heartbeats
from tests.service.queue.queues import (
    STALLED_AFTER_SECONDS,
    Clock,
    ask,
    fetched_by_a_new_worker,
    move_the_databases_clock,
    opened,
    queue_rows,
    swept_after,
)


async def lost_to_a_second_worker(manager, url):
    """Return a fetched job, now in the hands of another worker, and that one's id."""
    _, fetched = await fetched_by_a_new_worker(manager)
    await swept_after(manager, STALLED_AFTER_SECONDS)
    second_id, _ = await fetched_by_a_new_worker(manager)
    return fetched, second_id


async def test_a_worker_that_lost_a_job_cannot_end_it(manager, job, database_url):
    fetched, second_id = await lost_to_a_second_worker(manager, database_url)
    await manager.finish_job(fetched, Status.SUCCEEDED, delete_job=True)
    assert queue_rows(database_url) == [("doing", second_id, 1)]


async def test_a_worker_that_lost_a_job_cannot_put_it_back(manager, job, database_url):
    fetched, second_id = await lost_to_a_second_worker(manager, database_url)
    await manager.retry_job(fetched)
    assert queue_rows(database_url) == [("doing", second_id, 1)]


async def test_a_worker_cannot_end_a_job_that_it_lost_and_fetched_again(manager, job, database_url):
    worker_id, fetched = await fetched_by_a_new_worker(manager)
    assert await manager.take_back(fetched)
    await manager.fetch_job(["cpu"], worker_id)
    await manager.retry_job(fetched)
    assert queue_rows(database_url) == [("doing", worker_id, 1)]


async def test_a_worker_that_the_queue_forgot_learns_it(manager, job):
    with pytest.raises(WorkerForgotten):
        await manager.fetch_job(["cpu"], 12345)


async def test_a_missing_schema_is_waited_for(empty_database_url):
    async with opened(empty_database_url) as (_, manager):
        assert await manager.fetch_job(["cpu"], 1) is None
        await manager.update_heartbeat(1)


async def test_a_job_that_was_lost_on_its_way_to_the_worker_is_put_back(manager, job, database_url):
    worker_id = await manager.register_worker()
    await manager.fetch_job(["gpu"], worker_id)
    # The queue gave the job away, and the answer never came: another manager fetches it in this one's name.
    async with opened(database_url) as (_, lost):
        assert await lost.fetch_job(["cpu"], worker_id) is not None
    await hand_back_stalled_jobs(manager, Heartbeats(silent_after_seconds=STALLED_AFTER_SECONDS, clock=Clock()))
    assert queue_rows(database_url) == [("todo", worker_id, 1)]


async def test_a_job_in_hand_stays_there(manager, job, database_url):
    worker_id, fetched = await fetched_by_a_new_worker(manager)
    await manager.put_back_unreceived()
    assert queue_rows(database_url) == [("doing", worker_id, 0)]
    await manager.retry_job(fetched)
    assert queue_rows(database_url) == [("todo", worker_id, 1)]


async def test_the_engine_prunes_no_worker_by_the_databases_clock(manager, database_url):
    worker_id = await manager.register_worker()
    move_the_databases_clock(database_url, 5)
    assert await manager.prune_stalled_workers(1) == []
    assert list(await manager.heard()) == [worker_id]


async def test_a_job_that_is_due_in_a_future_that_was_taken_back_is_due_now(manager, job, database_url):
    ask(database_url, "UPDATE procrastinate_jobs SET scheduled_at = now() + interval '1 h'")
    _, fetched = await fetched_by_a_new_worker(manager)
    assert fetched is None
    await manager.mend_due_times()
    _, fetched = await fetched_by_a_new_worker(manager)
    assert fetched is not None


async def test_a_retry_waits_by_the_databases_clock(manager, job, database_url, monkeypatch):
    _, fetched = await fetched_by_a_new_worker(manager)
    ahead = datetime.now(UTC) + timedelta(hours=5)
    # This machine's clock is five hours ahead, and the job is to wait for two seconds.
    monkeypatch.setattr("plimsoll.service.queue.fencing.utcnow", lambda: ahead)
    await manager.retry_job(fetched, retry_at=ahead + timedelta(seconds=2))
    ((wait,),) = ask(database_url, "SELECT extract(epoch FROM scheduled_at - now())::float8 FROM procrastinate_jobs")
    assert wait <= 2
