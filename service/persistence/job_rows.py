"""Between a job's row and a job, and the events that tell of its changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from plimsoll.service.persistence.records import EventKind, Job, Json, Progress
from plimsoll.service.persistence.tables import job_events, jobs

# Whoever LISTENs here hears the id of each job that changed, once it is committed.
JOB_CHANNEL = "plimsoll_job"


def job_from_row(row: sa.Row[Any]) -> Job:
    """Return the job that a row holds which has every column of `jobs`."""
    values = {column.name: row._mapping[column.name] for column in jobs.c if column is not jobs.c.attempt_token}
    progress = values.pop("progress")
    return Job(progress=None if progress is None else Progress(**progress), **values)


async def append_event(connection: AsyncConnection, job_id: str, kind: EventKind, data: Json) -> None:
    """Append what happened, and notify the listeners when the transaction commits."""
    event = sa.insert(job_events).values(job_id=job_id, kind=kind, data=data).returning(job_events.c.job_id).cte()
    await connection.execute(sa.select(sa.func.pg_notify(JOB_CHANNEL, event.c.job_id)))
