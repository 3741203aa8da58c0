"""Jobs: how they are queued, attempted, cancelled and finished.

Each change of a job is one transaction that locks the job's row, changes it,
appends the event that tells of it and notifies whoever listens. So the events of
one job have ids in the order in which they happened, and none is seen before
the change it tells of.

Whoever works on a job holds an attempt token. A new attempt draws a new one, and
from then on nothing written under the old one is taken: a worker that was
paused and wakes up late can neither finish a job twice nor overwrite a result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from plimsoll.service.ground.errors import JobNotFound, Unstorable
from plimsoll.service.persistence.job_rows import append_event, job_from_row
from plimsoll.service.persistence.job_submission import Submission
from plimsoll.service.persistence.paging import newest_first, page_of, page_size
from plimsoll.service.persistence.records import (
    FINAL_STATES,
    JOB_STATES,
    Attempt,
    FinalState,
    Job,
    JobEvent,
    JobKind,
    JobOutcomes,
    JobState,
    Json,
    NewJob,
    Page,
    Progress,
    ProgressReply,
    QueueDepth,
)
from plimsoll.service.persistence.tables import job_events, jobs
from plimsoll.service.persistence.transactions import Transactions


class JobStore:
    """Every job there is."""

    def __init__(self, transactions: Transactions, *, queue_limit: int, key_job_limit: int) -> None:
        self._transactions = transactions
        self._submission = Submission(transactions, queue_limit=queue_limit, key_job_limit=key_job_limit)

    async def submit(
        self, job: NewJob, *, idempotency_key: str | None, route: str, check_room: Callable[[], None] = lambda: None
    ) -> Job:
        """Store a job and queue it, in one transaction, and return it.

        The same key on the same route with the same request returns the first job, as it stands now. Raises
        IdempotencyConflict for another request under the key, QueueFull, JobQuotaReached, PlanNotFound and, of a
        new job, what `check_room` does.
        """
        return await self._submission.submit(job, idempotency_key=idempotency_key, route=route, check_room=check_room)

    async def get(self, job_id: str) -> Job:
        """Return a job; raises JobNotFound."""
        try:
            async with self._transactions.read() as connection:
                row = (await connection.execute(sa.select(jobs).where(jobs.c.job_id == job_id))).one_or_none()
        except Unstorable as error:
            raise JobNotFound(job_id) from error
        if row is None:
            raise JobNotFound(job_id)
        return job_from_row(row)

    async def page(
        self,
        *,
        kind: JobKind | None = None,
        state: JobState | None = None,
        plan_id: str | None = None,
        key_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Job]:
        """Return jobs, newest first, of those that match each filter given; raises InvalidCursor."""
        query = sa.select(jobs)
        filters = ((jobs.c.kind, kind), (jobs.c.state, state), (jobs.c.plan_id, plan_id), (jobs.c.key_id, key_id))
        for column, wanted in filters:
            if wanted is not None:
                query = query.where(column == wanted)
        query = newest_first(query, jobs.c.created_at, jobs.c.job_id, limit=limit, cursor=cursor)
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, jobs.c.created_at, jobs.c.job_id, job_from_row, limit=limit)

    async def counts(self) -> dict[JobState, int]:
        """Return how many jobs are in each state."""
        query = sa.select(jobs.c.state, sa.func.count().label("jobs")).group_by(jobs.c.state)
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return dict.fromkeys(JOB_STATES, 0) | {row.state: row.jobs for row in rows}

    async def queue_depths(self) -> tuple[QueueDepth, ...]:
        """Return what waits, for each queue with anything in it."""
        # Not less than nothing, where the clock was put back since.
        since = sa.func.greatest(sa.func.now() - sa.func.min(jobs.c.created_at), timedelta(0))
        age = sa.func.extract("epoch", since).cast(sa.Double)
        query = (
            sa.select(jobs.c.queue, sa.func.count().label("waiting"), age.label("oldest_seconds"))
            .where(jobs.c.state == "queued")
            .group_by(jobs.c.queue)
        )
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return tuple(QueueDepth(**row._mapping) for row in rows)

    async def outcomes(self) -> tuple[JobOutcomes, ...]:
        """Return how the finished jobs on record ended."""
        query = (
            sa.select(jobs.c.kind, jobs.c.state, sa.func.count().label("jobs"))
            .where(jobs.c.state.in_(FINAL_STATES))
            .group_by(jobs.c.kind, jobs.c.state)
        )
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return tuple(JobOutcomes(**row._mapping) for row in rows)

    async def events_after(self, job_id: str, after_id: int = 0, limit: int = 100) -> tuple[JobEvent, ...]:
        """Return a job's events with ids above `after_id`, oldest first.

        The last event of a finished job is of kind `state`; its result, if any, stands just before.
        """
        query = (
            sa.select(job_events)
            .where(job_events.c.job_id == job_id, job_events.c.id > after_id)
            .order_by(job_events.c.id)
            .limit(page_size(limit))
        )
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return tuple(JobEvent(**row._mapping) for row in rows)

    async def request_cancel(self, job_id: str) -> Job:
        """Cancel a waiting job at once, ask the worker of a running one to stop, leave a finished one.

        Return the job as it then stands; raises JobNotFound.
        """
        async with self._changing(job_id) as (connection, job):
            if job.state == "queued":
                await connection.execute(_CANCEL_IN_QUEUE, {"queue_job_id": job.queue_job_id})
                return await _end(connection, job, "cancelled")
            if job.state == "running" and not job.cancel_requested:
                job = await _change(connection, job_id, cancel_requested=True)
                await append_event(connection, job_id, "state", {"state": "running", "cancel_requested": True})
            return job

    async def begin_attempt(self, job_id: str, worker: str) -> Attempt | None:
        """Give the job to `worker`, taking it from whoever had it.

        Return None where there is nothing to do: the job is finished, or cancelled, or was begun as
        often as it may be; then it ends here as failed. Raises JobNotFound.
        """
        async with self._changing(job_id) as (connection, job):
            if job.is_finished:
                return None
            if job.cancel_requested:
                await _end(connection, job, "cancelled")
                return None
            if job.attempts >= job.max_attempts:
                await _end(connection, job, "failed", error=_attempts_exhausted(job))
                return None
            token = uuid4()
            begun = await _change(
                connection,
                job_id,
                state="running",
                attempts=job.attempts + 1,
                attempt_token=token,
                worker=worker,
                progress=None,
                started_at=sa.func.now(),
            )
            data = {"state": "running", "attempt": begun.attempts, "worker": worker}
            await append_event(connection, job_id, "state", data)
            return Attempt(job=begun, token=token)

    async def report_progress(self, job_id: str, token: UUID, progress: Progress) -> ProgressReply:
        """Store how far an attempt has come, and return whether to go on."""
        data = {
            "done": progress.done,
            "total": progress.total,
            "unit": progress.unit,
            "message": progress.message,
        }
        async with self._transactions.write() as connection:
            job = await _held(connection, job_id, token)
            if job is None:
                return ProgressReply(still_owner=False, cancel_requested=False)
            await _change(connection, job_id, progress=data)
            await append_event(connection, job_id, "progress", data)
            return ProgressReply(still_owner=True, cancel_requested=job.cancel_requested)

    async def finish(
        self, job_id: str, token: UUID, state: FinalState, result: Json | None = None, error: Json | None = None
    ) -> bool:
        """End a job, and return whether it was still this attempt's to end; if not, nothing changed."""
        async with self._transactions.write() as connection:
            job = await _held(connection, job_id, token)
            if job is None:
                return False
            await _end(connection, job, state, result=result, error=error)
            return True

    async def release(self, job_id: str, token: UUID) -> bool:
        """Hand a job back unfinished, and return whether it was still this attempt's.

        A worker that is told to stop has not failed: the job may be begun once more for it. A job
        that someone wants cancelled ends here. The queue's own row is the caller's to retry.
        """
        async with self._transactions.write() as connection:
            job = await _held(connection, job_id, token)
            if job is None:
                return False
            if job.cancel_requested:
                await _end(connection, job, "cancelled")
                return True
            await _change(connection, job_id, state="queued", attempt_token=None, max_attempts=job.max_attempts + 1)
            await append_event(connection, job_id, "state", {"state": "queued", "released_by": job.worker})
            return True

    @asynccontextmanager
    async def _changing(self, job_id: str) -> AsyncIterator[tuple[AsyncConnection, Job]]:
        """Yield a transaction and the job, whose row is locked until it ends; raises JobNotFound."""
        query = sa.select(jobs).where(jobs.c.job_id == job_id).with_for_update()
        try:
            async with self._transactions.write() as connection:
                row = (await connection.execute(query)).one_or_none()
                if row is None:
                    raise JobNotFound(job_id)
                yield connection, job_from_row(row)
        except Unstorable as error:
            raise JobNotFound(job_id) from error


_CANCEL_IN_QUEUE = sa.text("SELECT procrastinate_cancel_job_v1(:queue_job_id, false, false)")


def _attempts_exhausted(job: Job) -> Json:
    return {
        "code": "attempts-exhausted",
        "detail": f"The job was begun {job.attempts} times and never finished; the last worker was {job.worker}.",
        "attempts": job.attempts,
    }


async def _held(connection: AsyncConnection, job_id: str, token: UUID) -> Job | None:
    """Return a job, locked, if the token is that of its running attempt."""
    query = sa.select(jobs).where(jobs.c.job_id == job_id, jobs.c.attempt_token == token).with_for_update()
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else job_from_row(row)


async def _change(connection: AsyncConnection, job_id: str, **values: Any) -> Job:
    update = sa.update(jobs).where(jobs.c.job_id == job_id).values(**values).returning(*jobs.c)
    return job_from_row((await connection.execute(update)).one())


async def _end(
    connection: AsyncConnection, job: Job, state: FinalState, *, result: Json | None = None, error: Json | None = None
) -> Job:
    ended = await _change(
        connection,
        job.job_id,
        state=state,
        attempt_token=None,
        finished_at=sa.func.now(),
        result=result,
        error=error,
    )
    if result is not None:
        await append_event(connection, job.job_id, "result", result)
    data = {"state": state} if error is None else {"state": state, "error": error}
    await append_event(connection, job.job_id, "state", data)
    return ended
