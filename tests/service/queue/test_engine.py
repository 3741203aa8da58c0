from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.persistence.records import NewJob
from plimsoll.service.queue.engine import (
    FencedJobManager,
    HandedBack,
    WorkerForgotten,
    _Retry,
    build_queue,
    hand_back_stalled_jobs,
    run_queue_worker,
)
from plimsoll.service.queue.heartbeats import Heartbeats
from plimsoll.service.worker.processes.child import PROJECT_ROOT

STALLED_AFTER_SECONDS = 10.0
# Nothing here takes as long but on a machine that stands still.
PATIENCE_SECONDS = 240.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def run_nothing(job_id: str) -> None:
    raise AssertionError(f"{job_id} is fetched by the tests themselves")


@asynccontextmanager
async def opened(url, run_job=run_nothing):
    queue, manager = build_queue(url, run_job, concurrency=1)
    async with queue.open_async():
        yield queue, manager


@pytest.fixture
async def manager(database_url):
    async with opened(database_url) as (_, manager):
        yield manager


@pytest.fixture
async def job(database):
    new = NewJob(kind="quantize", queue="cpu", request={})
    return await database.jobs.submit(new, idempotency_key=None, route="/quantize")


def ask(url, query, *values):
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        cursor = connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def queue_rows(url):
    return ask(url, "SELECT status::text, worker_id, attempts FROM procrastinate_jobs")


async def swept_after(manager, seconds, *, between=lambda: None):
    """Return the jobs that another worker hands back by a look that is so much later than a first one."""
    clock = Clock()
    other = FencedJobManager(manager.connector)
    heartbeats = Heartbeats(silent_after_seconds=STALLED_AFTER_SECONDS, clock=clock)
    swept = await hand_back_stalled_jobs(other, heartbeats)
    for _ in range(2):
        clock.now += seconds / 2
        between()
        swept += await hand_back_stalled_jobs(other, heartbeats)
    return swept


async def fetched_by_a_new_worker(manager):
    worker_id = await manager.register_worker()
    return worker_id, await manager.fetch_job(["cpu"], worker_id)


async def test_a_fetched_job_carries_the_id_of_ours(manager, job):
    _, fetched = await fetched_by_a_new_worker(manager)
    assert (fetched.task_name, fetched.task_kwargs) == ("run_job", {"job_id": job.job_id})


async def test_a_worker_takes_no_job_of_a_queue_that_it_does_not_serve(manager, job):
    worker_id = await manager.register_worker()
    assert await manager.fetch_job(["gpu"], worker_id) is None


async def test_jobs_of_a_silent_worker_are_handed_back(manager, job, database_url):
    await fetched_by_a_new_worker(manager)
    assert await swept_after(manager, STALLED_AFTER_SECONDS) == [job.job_id]
    # Put back, and the worker itself is forgotten.
    assert queue_rows(database_url) == [("todo", None, 1)]
    assert ask(database_url, "SELECT id FROM procrastinate_workers") == []


async def test_a_worker_whose_own_heartbeat_is_held_up_does_not_take_its_jobs_from_itself(manager, job, database_url):
    worker_id, _ = await fetched_by_a_new_worker(manager)
    clock = Clock()
    heartbeats = Heartbeats(silent_after_seconds=STALLED_AFTER_SECONDS, clock=clock)
    for _ in range(4):
        assert await hand_back_stalled_jobs(manager, heartbeats) == []
        clock.now += STALLED_AFTER_SECONDS
    assert queue_rows(database_url) == [("doing", worker_id, 0)]


async def test_jobs_of_a_worker_that_was_heard_just_in_time_stay(manager, job, database_url):
    worker_id, _ = await fetched_by_a_new_worker(manager)
    assert await swept_after(manager, STALLED_AFTER_SECONDS - 0.1) == []
    assert ask(database_url, "SELECT id FROM procrastinate_workers") == [(worker_id,)]


async def test_jobs_of_a_worker_that_left_without_them_are_handed_back(manager, job):
    worker_id, _ = await fetched_by_a_new_worker(manager)
    await manager.unregister_worker(worker_id)
    assert await swept_after(manager, 0) == [job.job_id]


async def test_of_many_sweeps_at_once_one_hands_a_job_back(manager, job, database_url):
    await fetched_by_a_new_worker(manager)
    swept = await asyncio.gather(*(swept_after(manager, STALLED_AFTER_SECONDS) for _ in range(4)))
    assert sorted(swept) == [[], [], [], [job.job_id]]
    assert queue_rows(database_url)[0][2] == 1


async def test_a_silent_worker_that_is_heard_again_is_not_forgotten(manager, job, database_url):
    worker_id = await manager.register_worker()
    heard = await manager.heard()
    await manager.update_heartbeat(worker_id)
    await manager.forget_workers(heard)
    assert list(await manager.heard()) == [worker_id]


async def test_while_the_database_is_away_nobody_is_missed(manager, job, empty_database_url):
    worker_id, _ = await fetched_by_a_new_worker(manager)
    clock, other = Clock(), FencedJobManager(manager.connector)
    heartbeats = Heartbeats(silent_after_seconds=STALLED_AFTER_SECONDS, clock=clock)
    await hand_back_stalled_jobs(other, heartbeats)
    async with opened(empty_database_url) as (_, without_tables):
        for _ in range(3):
            clock.now += STALLED_AFTER_SECONDS
            with pytest.raises(ConnectorException):
                await hand_back_stalled_jobs(without_tables, heartbeats)
    assert await hand_back_stalled_jobs(other, heartbeats) == []
    assert list(await manager.heard()) == [worker_id]


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


async def test_the_row_of_a_job_that_is_done_is_deleted(database, job, database_url):
    done = asyncio.Event()

    async def run_job(job_id: str) -> None:
        assert job_id == job.job_id
        done.set()

    async with opened(database_url, run_job) as (queue, _):
        work = asyncio.create_task(worker_of(queue))
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert queue_rows(database_url) == []


async def test_a_worker_that_is_told_to_stop_puts_its_job_back_for_at_once(database, job, database_url):
    begun = asyncio.Event()

    async def run_job(job_id: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise HandedBack from None

    async with opened(database_url, run_job) as (queue, manager):
        work = asyncio.create_task(worker_of(queue))
        await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert queue_rows(database_url) == [("todo", None, 1)]
        _, fetched = await fetched_by_a_new_worker(manager)
        assert fetched.task_kwargs == {"job_id": job.job_id}


def worker_of(queue):
    return run_queue_worker(queue, name="test", queues=["cpu"], concurrency=1, heartbeat_seconds=1)


@pytest.mark.parametrize("error", [HandedBack(), asyncio.CancelledError()])
def test_a_job_that_was_handed_back_waits_for_nothing(error):
    assert _Retry().get_retry_decision(exception=error, job=None).retry_at is None


def test_the_worker_itself_loads_no_torch():
    program = "import sys, service.worker.main; print('torch' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "False"


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


def move_the_databases_clock(url, hours):
    """Make what was written until now look as it does after such a jump: ahead of now after one back."""
    ask(url, "UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - make_interval(hours => %s)", hours)


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_dead_worker_is_missed_though_the_databases_clock_jumped(manager, job, database_url, hours):
    await fetched_by_a_new_worker(manager)
    move_the_databases_clock(database_url, hours)
    assert await swept_after(manager, STALLED_AFTER_SECONDS) == [job.job_id]


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_living_worker_keeps_its_jobs_though_the_databases_clock_jumps(manager, job, database_url, hours):
    worker_id, _ = await fetched_by_a_new_worker(manager)

    def jump() -> None:
        move_the_databases_clock(database_url, hours)

    # The second look comes after the jump and before the next beat, ten hours out in all.
    assert await swept_after(manager, STALLED_AFTER_SECONDS - 0.1, between=jump) == []
    assert queue_rows(database_url) == [("doing", worker_id, 0)]


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
    monkeypatch.setattr("plimsoll.service.queue.engine.utcnow", lambda: ahead)
    await manager.retry_job(fetched, retry_at=ahead + timedelta(seconds=2))
    ((wait,),) = ask(database_url, "SELECT extract(epoch FROM scheduled_at - now())::float8 FROM procrastinate_jobs")
    assert wait <= 2
