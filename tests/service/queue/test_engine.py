"""How jobs are fetched, run and handed back."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from procrastinate.exceptions import ConnectorException

from plimsoll.service.queue.engine import (
    HandedBack,
    _Retry,
    hand_back_stalled_jobs,
    run_queue_worker,
)
from plimsoll.service.queue.fencing import FencedJobManager
from plimsoll.service.queue.heartbeats import Heartbeats
from plimsoll.service.worker.processes.child import PROJECT_ROOT
from tests.service.queue.queues import (
    PATIENCE_SECONDS,
    STALLED_AFTER_SECONDS,
    Clock,
    ask,
    fetched_by_a_new_worker,
    move_the_databases_clock,
    opened,
    queue_rows,
    swept_after,
)


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
