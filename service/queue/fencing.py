"""The queue's rows, changed only by who holds them.

Every change of a row is fenced by the worker and the attempt that fetched it, so that a worker that was paused and
replaced cannot end or requeue the job of its successor. A database that goes away is waited for: the engine would lose
its heartbeat for good and never say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import procrastinate
import structlog
from procrastinate import exceptions as queue_errors
from procrastinate.jobs import Job as QueueJob
from procrastinate.jobs import Status
from procrastinate.manager import JobManager
from procrastinate.utils import utcnow
from psycopg import errors as postgres_errors

from plimsoll.service.persistence.job_submission import TASK_NAME

RECONNECT_SECONDS = 1.0
LONGEST_CRASH_RETRY_SECONDS = 30
"""Nothing is due later than this, but by a clock that was put back since."""

log = structlog.get_logger(__name__)


class WorkerForgotten(Exception):
    """The queue counted this worker as dead; it has to register anew."""


class FencedJobManager(JobManager):
    """The engine's own statements, on the rows that are still the caller's, and patient with the database."""

    def __init__(self, connector: procrastinate.PsycopgConnector) -> None:
        super().__init__(connector)
        self.stopping = asyncio.Event()
        """Set: wait for the database no longer."""
        self._worker_id: int | None = None
        self._in_hand: set[int | None] = set()
        # While a job is on its way from the queue, nobody can say whether it is in hand.
        self._fetching = asyncio.Lock()

    @property
    def worker_id(self) -> int | None:
        """Return what the queue calls the worker that these are the hands of; None before it asked for a job."""
        return self._worker_id

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> QueueJob | None:
        """Return the next job, or None when there is none or the database is away."""
        try:
            async with self._fetching:
                self._worker_id = worker_id
                job = await super().fetch_job(queues, worker_id)
                if job is not None:
                    self._in_hand.add(job.id)
                return job
        except queue_errors.ConnectorException as error:
            if isinstance(error.__cause__, postgres_errors.ForeignKeyViolation):
                raise WorkerForgotten(f"The queue no longer knows worker {worker_id}.") from error
            log.warning("database unavailable", doing="fetching a job", error=cause_of(error))
            return None

    async def finish_job(self, job: QueueJob, status: Status, delete_job: bool) -> None:
        """End a job in the queue; nothing happens to one that was given to another worker."""
        await self._patiently(job, _FENCED_FINISH, status=status.value, delete_job=delete_job)

    async def retry_job(
        self,
        job: QueueJob,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Put a job back, for at once where no time is given; nothing happens to one given to another worker.

        What lies between now and `retry_at` is added to the database's time: one that was set by this
        machine's clock would wait for as long as that clock is ahead.
        """
        delay_seconds = None if retry_at is None else max(0.0, (retry_at - utcnow()).total_seconds())
        await self._patiently(
            job,
            _FENCED_RETRY,
            delay_seconds=delay_seconds,
            new_priority=priority,
            new_queue_name=queue,
            new_lock=lock,
        )

    async def take_back(self, job: QueueJob) -> bool:
        """Put back a job whose worker is silent; return False where someone else was faster."""
        nothing = {"delay_seconds": None, "new_priority": None, "new_queue_name": None, "new_lock": None}
        return bool(await self._fenced(job, _FENCED_RETRY, **nothing))

    async def put_back_unreceived(self) -> None:
        """Put back what the queue gave to this worker and the network lost on the way.

        The worker is alive, so that nobody else would ever take such a job from it.
        """
        async with self._fetching:
            if self._worker_id is not None:
                await self.connector.execute_query_all_async(
                    _RETRY_UNRECEIVED, worker_id=self._worker_id, in_hand=list(self._in_hand)
                )

    async def mend_due_times(self) -> None:
        """Make due now what the database's clock, since put back, wrote down as due much later."""
        await self.connector.execute_query_async(
            _DUE_IN_THE_FUTURE, seconds=LONGEST_CRASH_RETRY_SECONDS, task_name=TASK_NAME
        )

    async def heard(self) -> dict[int, datetime]:
        """Return every worker's heartbeat."""
        rows = await self.connector.execute_query_all_async(_HEARTBEATS)
        return {row["id"]: row["last_heartbeat"] for row in rows}

    async def jobs_without_worker(self, silent: Iterable[int]) -> list[QueueJob]:
        """Return the jobs in the hands of these workers, and of those that left the queue."""
        rows = await self.connector.execute_query_all_async(_LEFT_BEHIND, silent=list(silent))
        return [QueueJob.from_row(row) for row in rows]

    async def forget_workers(self, silent: Mapping[int, datetime]) -> None:
        """Delete silent workers that hold no job any more; one that was heard since stays."""
        await self.connector.execute_query_async(_FORGET_WORKERS, workers=list(silent), beats=list(silent.values()))

    async def prune_stalled_workers(self, seconds_since_heartbeat: float) -> list[int]:  # noqa: ARG002
        """Do nothing: the engine would judge all workers by the database's clock, and each sweep does better."""
        return []

    async def update_heartbeat(self, worker_id: int) -> None:
        """Say that the worker is alive, or try again at the next beat."""
        try:
            await super().update_heartbeat(worker_id)
        except queue_errors.ConnectorException as error:
            log.warning("database unavailable", doing="sending the heartbeat", error=cause_of(error))

    async def _patiently(self, job: QueueJob, query: str, **arguments: Any) -> None:
        while True:
            try:
                if not await self._fenced(job, query, **arguments):
                    log.warning("queue row left alone", queue_job_id=job.id, reason="another worker has the job")
                self._in_hand.discard(job.id)
                return
            except queue_errors.ConnectorException as error:
                if self.stopping.is_set():
                    raise  # The row stays with a worker that is gone, and is recovered from it.
                log.warning("database unavailable", doing="ending a job in the queue", error=cause_of(error))
                await pause(self.stopping, RECONNECT_SECONDS)

    async def _fenced(self, job: QueueJob, query: str, **arguments: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await self.connector.execute_query_all_async(
            query, job_id=job.id, worker_id=job.worker_id, attempts=job.attempts, **arguments
        )
        return rows


# The row is locked before the engine's function looks at it, and only if it is still in the
# hands that `job` describes. MATERIALIZED keeps the two steps in this order.
_HELD = """
WITH held AS MATERIALIZED (
    SELECT id FROM procrastinate_jobs
     WHERE id = %(job_id)s AND status = 'doing' AND attempts = %(attempts)s
       AND worker_id IS NOT DISTINCT FROM %(worker_id)s
       FOR UPDATE
)
"""
_FENCED_FINISH = f"{_HELD} SELECT id, procrastinate_finish_job_v1(id, %(status)s, %(delete_job)s) FROM held"  # noqa: S608
_FENCED_RETRY = f"""{_HELD}
SELECT id, procrastinate_retry_job_v2(
    id, now() + make_interval(secs => %(delay_seconds)s::float8), %(new_priority)s, %(new_queue_name)s, %(new_lock)s
) FROM held
"""  # noqa: S608

_RETRY_UNRECEIVED = """
WITH lost AS MATERIALIZED (
    SELECT id FROM procrastinate_jobs
     WHERE status = 'doing' AND worker_id = %(worker_id)s AND NOT id = ANY(%(in_hand)s::bigint[])
       FOR UPDATE SKIP LOCKED
)
SELECT id, procrastinate_retry_job_v2(id, NULL, NULL, NULL, NULL) FROM lost
"""
_HEARTBEATS = "SELECT id, last_heartbeat FROM procrastinate_workers"
_LEFT_BEHIND = """
SELECT id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name, attempts, worker_id
  FROM procrastinate_jobs
 WHERE status = 'doing' AND (worker_id IS NULL OR worker_id = ANY(%(silent)s::bigint[]))
"""
_FORGET_WORKERS = """
DELETE FROM procrastinate_workers WHERE id IN (
    SELECT worker.id
      FROM procrastinate_workers worker
      JOIN unnest(%(workers)s::bigint[], %(beats)s::timestamptz[]) AS silent (id, beat)
        ON silent.id = worker.id AND silent.beat = worker.last_heartbeat
     WHERE NOT EXISTS (SELECT FROM procrastinate_jobs WHERE worker_id = worker.id AND status = 'doing')
       FOR UPDATE OF worker SKIP LOCKED
)
"""
_DUE_IN_THE_FUTURE = """
UPDATE procrastinate_jobs SET scheduled_at = now()
 WHERE status = 'todo' AND task_name = %(task_name)s AND scheduled_at > now() + make_interval(secs => %(seconds)s)
"""


def cause_of(error: BaseException) -> str:
    """Return the first line of what the database said."""
    return str(error.__cause__ or error).strip().partition("\n")[0]


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Wait, but no longer than until `stopping`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
