"""The queue: Procrastinate on our own Postgres, and what it leaves to its users.

A worker's procrastinate job is the permit to begin an attempt; our own row holds
the job. Rows are changed as `fencing.py` has it, and jobs of dead workers are handed
back, which the engine can do but does not do by itself; who is dead is told by no
clock that can be set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import procrastinate
import structlog
from procrastinate import exceptions as queue_errors
from procrastinate.jobs import DeleteJobCondition
from procrastinate.jobs import Job as QueueJob
from procrastinate.retry import BaseRetryStrategy, RetryDecision

from plimsoll.service.ground.database_address import KEEPALIVE, libpq_url
from plimsoll.service.observability.tracing import Tracer, job_span
from plimsoll.service.persistence.job_submission import TASK_NAME
from plimsoll.service.queue.fencing import (
    LONGEST_CRASH_RETRY_SECONDS,
    RECONNECT_SECONDS,
    FencedJobManager,
    cause_of,
)
from plimsoll.service.queue.heartbeats import Heartbeats

RunJob = Callable[[str], Awaitable[None]]

POLL_SECONDS = 1.0
"""How soon an idle worker sees a job that was handed back: the engine notifies of new ones only."""
POOL_TIMEOUT_SECONDS = 5.0
CRASH_RETRY_SECONDS = 1
"""Between attempts of a job whose child crashed; grows with the attempts."""
RETENTION_CRON = "17 * * * *"
"""Hourly, and not at the hour, when everyone else's tasks run. The engine keeps two workers from doing it twice."""
RETENTION_TASK_NAME = "delete_expired"
RETENTION_QUEUE = "cpu"

log = structlog.get_logger(__name__)


class HandedBack(Exception):
    """The worker is told to stop; the job is for another one, at once."""


class AttemptCrashed(Exception):
    """The attempt came to nothing and the job may be begun once more, a little later."""


class _Retry(BaseRetryStrategy):
    """Whatever the job's function raises, the job is not done: hand it back."""

    def get_retry_decision(self, *, exception: BaseException, job: QueueJob) -> RetryDecision:
        if isinstance(exception, (HandedBack, asyncio.CancelledError)):
            return RetryDecision()
        seconds = min(CRASH_RETRY_SECONDS * (job.attempts + 1), LONGEST_CRASH_RETRY_SECONDS)
        return RetryDecision(retry_in={"seconds": seconds})


class QueueConnector(procrastinate.PsycopgConnector):
    """The engine's connector, which listens again after the database was away."""

    async def listen_notify(self, on_notification: Any, channels: Iterable[str]) -> None:
        """Listen for ever."""
        while True:
            try:
                await super().listen_notify(on_notification, channels)
            except queue_errors.ConnectorException as error:
                log.warning("database unavailable", doing="listening for jobs", error=cause_of(error))
            await asyncio.sleep(RECONNECT_SECONDS)


def build_queue(
    database_url: str,
    run_job: RunJob,
    *,
    concurrency: int,
    delete_expired: Callable[[], Awaitable[None]] | None = None,
    tracer: Tracer | None = None,
) -> tuple[procrastinate.App, FencedJobManager]:
    """Return the engine, and what manages its rows, on the database at `database_url`.

    Each job is run by `run_job(job_id)`, `concurrency` of them at once; once an hour one worker of all runs
    `delete_expired`, where it is given. Nothing is opened.
    """
    connector = QueueConnector(
        conninfo=libpq_url(database_url),
        min_size=1,
        # Heartbeat, sweep and fetch beside the jobs that end at the same moment.
        max_size=concurrency + 3,
        timeout=POOL_TIMEOUT_SECONDS,
        # A pool that gives up soon begins anew at the next question; one that does not waits ever longer.
        reconnect_timeout=POOL_TIMEOUT_SECONDS,
        kwargs={**KEEPALIVE},
    )
    queue = procrastinate.App(connector=connector)
    manager = FencedJobManager(connector)
    queue.job_manager = manager  # The engine makes its own, and has no argument for another.

    @queue.task(name=TASK_NAME, retry=_Retry())
    async def run(job_id: str, traceparent: str | None = None) -> None:
        with job_span(tracer, job_id, traceparent):
            await run_job(job_id)

    if delete_expired is not None:

        @queue.periodic(cron=RETENTION_CRON)
        @queue.task(name=RETENTION_TASK_NAME, queue=RETENTION_QUEUE, queueing_lock=RETENTION_TASK_NAME)
        async def retain(timestamp: int) -> None:  # noqa: ARG001 - what the engine passes
            await delete_expired()

    return queue, manager


async def run_queue_worker(
    queue: procrastinate.App,
    *,
    name: str,
    queues: Iterable[str],
    concurrency: int,
    heartbeat_seconds: float,
) -> None:
    """Fetch and run jobs until cancelled, which hands the running ones back first."""
    await queue.run_worker_async(
        name=name,
        queues=list(queues),
        concurrency=concurrency,
        install_signal_handlers=False,
        fetch_job_polling_interval=POLL_SECONDS,
        shutdown_graceful_timeout=0,
        update_heartbeat_interval=heartbeat_seconds,
        # The history of a job is in our own tables.
        delete_jobs=DeleteJobCondition.ALWAYS.value,
    )


async def hand_back_stalled_jobs(
    manager: FencedJobManager, heartbeats: Heartbeats, *, before: Callable[[str], Awaitable[None]] | None = None
) -> list[str]:
    """Hand back the jobs of workers that missed their heartbeat, and return their ids.

    `before` is told of each job while nobody can have begun it again.

    Every worker may do this at once: a job is handed back by one of them. None does
    it to itself: it lives, whatever holds its heartbeat up. A job that was begun as
    often as it may be fails when it is next fetched.
    Raises ConnectorException while the database is away, when nobody counts as silent.
    """
    try:
        await manager.mend_due_times()
        await manager.put_back_unreceived()
        heard = {
            worker_id: beat for worker_id, beat in (await manager.heard()).items() if worker_id != manager.worker_id
        }
        silent = {worker_id: heard[worker_id] for worker_id in heartbeats.silent(heard)}
        left = await manager.jobs_without_worker(silent)
        taken = []
        for job in left:
            if before is not None and job.task_name == TASK_NAME:
                await before(str(job.task_kwargs["job_id"]))
            if await manager.take_back(job):
                taken.append(job)
        if silent:
            await manager.forget_workers(silent)
    except queue_errors.ConnectorException:
        heartbeats.forget()
        raise
    return [str(job.task_kwargs["job_id"]) for job in taken if job.task_name == TASK_NAME]
