"""What measured starts of serving engines taught, the newest value of each figure."""

from __future__ import annotations

from dataclasses import asdict, fields

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from service.persistence.records import LearnedKey, LearnedStart
from service.persistence.tables import learned_starts
from service.persistence.transactions import Transactions


class LearnedStartStore:
    """One row for each model, GPU, engine version and weight format that was measured."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def put(self, start: LearnedStart) -> LearnedStart:
        """Add what was learned to what is known, and return both; figures that it does not name stay."""
        table = learned_starts
        values = {**asdict(start.key), "learned": start.learned, "provenance": start.provenance}
        add = insert(table).values(**values)
        merged = add.on_conflict_do_update(
            index_elements=table.primary_key,
            set_={
                "learned": table.c.learned.op("||")(add.excluded.learned),
                "provenance": add.excluded.provenance,
                "created_at": sa.func.now(),
            },
        )
        async with self._transactions.write() as connection:
            row = (await connection.execute(merged.returning(*table.c))).one()
        return _start(row)

    async def all(self) -> tuple[LearnedStart, ...]:
        """Return everything that was learned."""
        async with self._transactions.read() as connection:
            rows = (await connection.execute(sa.select(learned_starts))).all()
        return tuple(_start(row) for row in rows)


def _start(row: sa.Row[tuple[object, ...]]) -> LearnedStart:
    named = row._mapping
    key = LearnedKey(**{field.name: named[field.name] for field in fields(LearnedKey)})
    return LearnedStart(key=key, learned=named["learned"], provenance=named["provenance"])
