"""A queue on the test's database, and what its rows say."""

from __future__ import annotations

from contextlib import asynccontextmanager

import psycopg

from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.queue.engine import (
    build_queue,
    hand_back_stalled_jobs,
)
from plimsoll.service.queue.fencing import FencedJobManager
from plimsoll.service.queue.heartbeats import Heartbeats

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


def move_the_databases_clock(url, hours):
    """Make what was written until now look as it does after such a jump: ahead of now after one back."""
    ask(url, "UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - make_interval(hours => %s)", hours)
