"""Stored plans.

A plan's id says what was asked of which planner, so a plan never changes: storing
one that is there already changes nothing, and two replicas may store the same
one at the same moment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from plimsoll.service.ground.errors import PlanNotFound, Unstorable
from plimsoll.service.persistence.grouped_writes import GroupedWrites
from plimsoll.service.persistence.keys import readable_by
from plimsoll.service.persistence.paging import newest_first, page_of
from plimsoll.service.persistence.persistent_connection import PersistentConnection
from plimsoll.service.persistence.records import ANY_PLAN, Page, PlanFilter, PlanSummary, StoredPlan
from plimsoll.service.persistence.tables import plans
from plimsoll.service.persistence.transactions import Transactions

_SUMMARY_COLUMNS = [column for column in plans.c if column.name not in ("answer", "model_config", "last_asked_at")]
_STORED = tuple(column.name for column in plans.c if column.name not in ("created_at", "last_asked_at"))
_JSON = ("request", "model_config")

# As text both ways: parsing the answer would lose its digits and cost milliseconds.
_READ_COLUMNS = (*_STORED, "created_at", "last_asked_at")
_READ = f"""
SELECT {", ".join("answer::text" if name == "answer" else name for name in _READ_COLUMNS)}
FROM plans WHERE plan_id = %s
"""  # noqa: S608 - the columns are our own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    """A plan to be stored, and the id of the key that asked for it."""

    plan: StoredPlan
    reader: str | None


class PlanStore:
    """Every plan that was answered."""

    def __init__(
        self, transactions: Transactions, *, reading: PersistentConnection, writing: PersistentConnection
    ) -> None:
        self._transactions = transactions
        self._reading = reading
        self._writing = writing
        self._writes: GroupedWrites[_Put, bool] = GroupedWrites(self._insert)

    async def put(self, plan: StoredPlan, *, reader: str | None = None) -> bool:
        """Store a plan unless its id is stored already; committed on return. Return whether it was stored.

        `reader` is the id of a key that may see it from now on. Raises DatabaseUnavailable, Overloaded and Unstorable.
        """
        return await self._writes.put(_Put(plan=plan, reader=reader))

    def check_backlog(self) -> None:
        """Raise Overloaded while plans wait so long to be stored that a further one would be refused."""
        self._writes.check_backlog()

    async def get(self, plan_id: str) -> StoredPlan:
        """Return a plan; raises PlanNotFound."""
        try:
            found = await self._reading.rows(_READ, (plan_id,))
        except Unstorable as error:
            raise PlanNotFound(plan_id) from error
        if not found:
            raise PlanNotFound(plan_id)
        return StoredPlan(**dict(zip(_READ_COLUMNS, found[0], strict=True)))

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
        return page_of(rows, plans.c.created_at, plans.c.plan_id, lambda row: PlanSummary(**row._mapping), limit=limit)

    async def close(self) -> None:
        """Wait until everything that was put is stored."""
        await self._writes.close()

    async def _insert(self, group: Sequence[_Put]) -> Sequence[bool]:
        # In one order everywhere: replicas that store the same plans cannot wait for each other in a circle.
        ordered = sorted(group, key=lambda put: put.plan.plan_id)
        values = [value for put in ordered for value in _values(put.plan)]
        values += [value for put in ordered for value in (put.reader, put.plan.plan_id)]
        stored = {plan_id for (plan_id,) in await self._writing.rows(_insert(len(group)), values)}
        outcomes = []
        for plan_id in (put.plan.plan_id for put in group):
            outcomes.append(plan_id in stored)
            # Of several with one id the first was stored.
            stored.discard(plan_id)
        return outcomes


@functools.cache
def _insert(count: int) -> str:
    """Return the statement that stores so many plans and who asked, and answers with the ids of those that were new."""
    row = f"({', '.join(['%s'] * len(_STORED))})"
    return f"""
    WITH stored AS (
        INSERT INTO plans ({", ".join(_STORED)}) VALUES {", ".join([row] * count)}
        ON CONFLICT DO NOTHING RETURNING plan_id
    ), readers AS (
        INSERT INTO plan_readers (key_id, plan_id)
        SELECT key_id, plan_id FROM (VALUES {", ".join(["(%s::text, %s::text)"] * count)}) AS asked (key_id, plan_id)
        WHERE key_id IS NOT NULL
        ON CONFLICT DO NOTHING
    )
    SELECT plan_id FROM stored
    """  # noqa: S608 - the columns are our own


def _values(plan: StoredPlan) -> tuple[object, ...]:
    return tuple(_json(getattr(plan, name)) if name in _JSON else getattr(plan, name) for name in _STORED)


def _json(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else json.dumps(value)
