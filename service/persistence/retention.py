"""Deleting what is old, in transactions so small that nobody waits for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from plimsoll.service.persistence.records import FINAL_STATES
from plimsoll.service.persistence.tables import job_events, jobs, measurements, plans
from plimsoll.service.persistence.transactions import Transactions

# Holds its locks for some tens of milliseconds; another sweep, and whoever works on a row, is not waited for.
_ROWS_AT_ONCE = 500


class ExpiredRows:
    """Deletes rows by age; a job that is not finished is never among them.

    Each method deletes until nothing of that age is left, and returns how many rows that were.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def delete_events(self, age: timedelta) -> int:
        """Delete the events of jobs that have been finished for `age`; results stay with the jobs."""
        expired = (
            sa.select(job_events.c.id)
            .join(jobs, jobs.c.job_id == job_events.c.job_id)
            .where(_are_finished_for(age))
            .limit(_ROWS_AT_ONCE)
            .with_for_update(skip_locked=True, of=job_events)
        )
        return await self._delete(sa.delete(job_events).where(job_events.c.id.in_(expired.scalar_subquery())))

    async def delete_jobs(self, age: timedelta) -> int:
        """Delete jobs that have been finished for `age`, with events and idempotency keys; measurements stay."""
        expired = (
            sa.select(jobs.c.job_id)
            .where(_are_finished_for(age))
            .limit(_ROWS_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        return await self._delete(sa.delete(jobs).where(jobs.c.job_id.in_(expired.scalar_subquery())))

    async def delete_plans(self, age: timedelta) -> int:
        """Delete plans that nobody has asked for in `age`, and that no job and no measurement rests on."""
        expired = (
            sa.select(plans.c.plan_id)
            .where(
                plans.c.last_asked_at < sa.func.now() - age,
                ~sa.exists().where(jobs.c.plan_id == plans.c.plan_id),
                ~sa.exists().where(measurements.c.plan_id == plans.c.plan_id),
            )
            .limit(_ROWS_AT_ONCE)
            .with_for_update(skip_locked=True, of=plans)
        )
        return await self._delete(sa.delete(plans).where(plans.c.plan_id.in_(expired.scalar_subquery())))

    async def _delete(self, delete: sa.Delete) -> int:
        total = 0
        while True:
            async with self._transactions.write() as connection:
                deleted = (await connection.execute(delete)).rowcount
            total += deleted
            if deleted < _ROWS_AT_ONCE:
                return total


def _are_finished_for(age: timedelta) -> sa.ColumnElement[Any]:
    return sa.and_(jobs.c.state.in_(FINAL_STATES), jobs.c.finished_at < sa.func.now() - age)
