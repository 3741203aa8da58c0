"""Stored plans.

A plan's id says what was asked of which planner, so a plan never changes: storing
one that is there already changes nothing, and two replicas may store the same
one at the same moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON, insert

from service.errors import PlanNotFound, Unstorable
from service.persistence.grouped_writes import GroupedWrites
from service.persistence.keys import readable_by
from service.persistence.paging import newest_first, page_size, write_cursor
from service.persistence.records import ANY_PLAN, Page, PlanFilter, PlanSummary, StoredPlan
from service.persistence.tables import plans
from service.persistence.transactions import Transactions

_SUMMARY_COLUMNS = [column for column in plans.c if column.name not in ("answer", "model_config", "last_asked_at")]

# As text both ways: parsing the answer would lose its digits and cost milliseconds.
_ANSWER_TEXT = sa.cast(plans.c.answer, sa.Text).label("answer")
_INSERT = (
    insert(plans)
    .values(answer=sa.cast(sa.bindparam("answer", type_=sa.Text), JSON))
    .on_conflict_do_nothing()
    .returning(plans.c.plan_id)
)


class PlanStore:
    """Every plan that was answered."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._writes: GroupedWrites[StoredPlan, bool] = GroupedWrites(self._insert)

    async def put(self, plan: StoredPlan) -> bool:
        """Store a plan unless its id is stored already; committed on return. Return whether it was stored.

        Raises DatabaseUnavailable and Unstorable.
        """
        return await self._writes.put(plan)

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a plan; raises PlanNotFound."""
        columns = (*_SUMMARY_COLUMNS, plans.c.model_config, plans.c.last_asked_at, _ANSWER_TEXT)
        query = sa.select(*columns).where(plans.c.plan_id == plan_id)
        try:
            async with self._transactions.read() as connection:
                row = (await connection.execute(query)).one_or_none()
        except Unstorable as error:
            raise PlanNotFound(plan_id) from error
        if row is None:
            raise PlanNotFound(plan_id)
        return StoredPlan(**row._mapping)

    async def note_asked(self, plan_id: str) -> None:
        """Note that a plan was asked for now; raises PlanNotFound where it was deleted meanwhile."""
        note = sa.update(plans).where(plans.c.plan_id == plan_id).values(last_asked_at=sa.func.now())
        async with self._transactions.write() as connection:
            if not (await connection.execute(note)).rowcount:
                raise PlanNotFound(plan_id)

    async def page(
        self, wanted: PlanFilter = ANY_PLAN, *, limit: int = 50, cursor: str | None = None
    ) -> Page[PlanSummary]:
        """Return plans, newest first, of those that are wanted; raises InvalidCursor."""
        query = sa.select(*_SUMMARY_COLUMNS)
        for name, value in asdict(wanted).items():
            if value is not None:
                is_wanted = plans.c.plan_id.in_(readable_by(value)) if name == "reader" else plans.c[name] == value
                query = query.where(is_wanted)
        query = newest_first(query, plans.c.created_at, plans.c.plan_id, limit=limit, cursor=cursor)
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        items = tuple(PlanSummary(**row._mapping) for row in rows[: page_size(limit)])
        if len(rows) == len(items):
            return Page(items=items, next_cursor=None)
        return Page(items=items, next_cursor=write_cursor(rows[len(items) - 1].created_at, items[-1].plan_id))

    async def close(self) -> None:
        """Wait until everything that was put is stored."""
        await self._writes.close()

    async def _insert(self, group: Sequence[StoredPlan]) -> Sequence[bool]:
        if not group:
            return ()
        # In one order everywhere: replicas that store the same plans cannot wait for each other in a circle.
        rows = [_row(plan) for plan in sorted(group, key=lambda plan: plan.plan_id)]
        async with self._transactions.write() as connection:
            stored = set((await connection.execute(_INSERT, rows)).scalars())
        outcomes = []
        for plan in group:
            outcomes.append(plan.plan_id in stored)
            # Of several with one id the first was stored.
            stored.discard(plan.plan_id)
        return outcomes


def _row(plan: StoredPlan) -> dict[str, object]:
    columns = (column.name for column in plans.c if column.name not in ("created_at", "last_asked_at"))
    return {name: getattr(plan, name) for name in columns}
