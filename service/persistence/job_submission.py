"""How a job enters: its row, its first event, its key and its place in the queue, all or none."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from uuid import uuid4

import sqlalchemy as sa
from psycopg import errors as postgres_errors
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from plimsoll.service.ground.errors import IdempotencyConflict, JobQuotaReached, PlanNotFound, QueueFull
from plimsoll.service.persistence.job_rows import append_event, job_from_row
from plimsoll.service.persistence.records import FINAL_STATES, Job, NewJob
from plimsoll.service.persistence.tables import idempotency_keys, jobs
from plimsoll.service.persistence.transactions import Transactions

TASK_NAME = "run_job"

# Submissions take turns, so that the limit holds exactly and the same key twice
# at the same moment makes one job. Any number does that no other lock here has.
_SUBMISSION_LOCK = 0x706C696D_00000001

# How far back to look for the pace at which jobs end.
_PACE_WINDOW_SECONDS = 300

_TAKE_TURN = sa.text("SELECT pg_advisory_xact_lock(:lock)")

# Procrastinate's own function, so that its row commits with ours or not at all.
_ENQUEUE = sa.text(
    "SELECT (procrastinate_defer_jobs_v1(ARRAY["
    "(:queue_name, :task_name, :task_priority, NULL, NULL, CAST(:task_args AS jsonb), NULL)"
    "::procrastinate_job_to_defer_v1]))[1]"
)


class Submission:
    """Takes in new jobs."""

    def __init__(self, transactions: Transactions, *, queue_limit: int, key_job_limit: int) -> None:
        self._transactions = transactions
        self._queue_limit = queue_limit
        self._key_job_limit = key_job_limit
        # Those of one process wait for their turn here, where they hold no connection.
        self._turn = asyncio.Lock()

    async def submit(
        self, job: NewJob, *, idempotency_key: str | None, route: str, check_room: Callable[[], None]
    ) -> Job:
        """Store and queue a job, or return the one that this key made before.

        Raises IdempotencyConflict, QueueFull, JobQuotaReached, PlanNotFound and, of a new job, what `check_room` does.
        """
        # Two keys may choose the same word, and neither may be told of the other's job.
        route = route if job.key_id is None else f"{route} by {job.key_id}"
        try:
            async with self._turn, self._transactions.write() as connection:
                await connection.execute(_TAKE_TURN, {"lock": _SUBMISSION_LOCK})
                if idempotency_key is not None:
                    first = await _job_of_key(connection, job, idempotency_key, route)
                    if first is not None:
                        return first
                check_room()
                await self._refuse_if_full(connection)
                await self._refuse_beyond_quota(connection, job.key_id)
                stored = await _store(connection, job)
                if idempotency_key is not None:
                    await _remember_key(connection, job, stored, idempotency_key, route)
                return stored
        except IntegrityError as error:
            if job.plan_id is not None and isinstance(error.orig, postgres_errors.ForeignKeyViolation):
                raise PlanNotFound(job.plan_id) from error
            raise

    async def _refuse_if_full(self, connection: AsyncConnection) -> None:
        query = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == "queued")
        waiting = (await connection.execute(query)).scalar_one()
        if waiting >= self._queue_limit:
            seconds = await _seconds_until_room(connection)
            raise QueueFull(waiting=waiting, limit=self._queue_limit, retry_after_seconds=seconds)

    async def _refuse_beyond_quota(self, connection: AsyncConnection, key_id: str | None) -> None:
        if key_id is None:
            return
        unfinished = jobs.c.state.not_in(FINAL_STATES)
        query = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.key_id == key_id, unfinished)
        held = (await connection.execute(query)).scalar_one()
        if held >= self._key_job_limit:
            seconds = await _seconds_until_room(connection)
            raise JobQuotaReached(unfinished=held, limit=self._key_job_limit, retry_after_seconds=seconds)


def request_hash(job: NewJob) -> str:
    """Return a digest that two submissions share exactly when they ask for the same thing."""
    asked = {"kind": job.kind, "plan_id": job.plan_id, "request": job.request}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=dict).encode()).hexdigest()


async def _job_of_key(connection: AsyncConnection, job: NewJob, key: str, route: str) -> Job | None:
    query = (
        sa.select(jobs, idempotency_keys.c.request_hash)
        .join(idempotency_keys, idempotency_keys.c.job_id == jobs.c.job_id)
        .where(idempotency_keys.c.key == key, idempotency_keys.c.route == route)
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if row.request_hash != request_hash(job):
        raise IdempotencyConflict(key)
    return dataclasses.replace(job_from_row(row), is_replay=True)


async def _store(connection: AsyncConnection, job: NewJob) -> Job:
    job_id = str(uuid4())
    task_args = {"job_id": job_id}
    if job.traceparent is not None:
        task_args["traceparent"] = job.traceparent
    place = {
        "queue_name": job.queue,
        "task_name": TASK_NAME,
        "task_priority": job.priority,
        "task_args": json.dumps(task_args),
    }
    queue_job_id = _ENQUEUE.bindparams(**place).columns(jobs.c.queue_job_id).scalar_subquery()
    insert = (
        sa.insert(jobs)
        .values(
            job_id=job_id,
            kind=job.kind,
            state="queued",
            queue=job.queue,
            priority=job.priority,
            plan_id=job.plan_id,
            request=job.request,
            estimate=job.estimate,
            max_attempts=job.max_attempts,
            key_id=job.key_id,
            queue_job_id=queue_job_id,
        )
        .returning(*jobs.c)
    )
    stored = job_from_row((await connection.execute(insert)).one())
    await append_event(connection, job_id, "state", {"state": "queued"})
    return stored


async def _remember_key(connection: AsyncConnection, job: NewJob, stored: Job, key: str, route: str) -> None:
    values = {"key": key, "route": route, "request_hash": request_hash(job), "job_id": stored.job_id}
    await connection.execute(sa.insert(idempotency_keys).values(**values))


async def _seconds_until_room(connection: AsyncConnection) -> int:
    """Return the mean time between the jobs that ended lately; the whole window if none did."""
    window = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, _PACE_WINDOW_SECONDS)
    query = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.finished_at > window)
    ended = (await connection.execute(query)).scalar_one()
    return math.ceil(_PACE_WINDOW_SECONDS / max(1, ended))
