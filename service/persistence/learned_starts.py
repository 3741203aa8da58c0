"""What measured starts of serving engines taught, the newest value of each figure, and what each measurement gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from plimsoll.service.persistence.records import Json, LearnedKey, LearnedStart
from plimsoll.service.persistence.tables import learned_starts, lessons, measurements
from plimsoll.service.persistence.transactions import Transactions

KEY_NAMES = tuple(field.name for field in fields(LearnedKey))


class LearnedStartStore:
    """One row for each model, GPU, engine version and weight format that was measured, and one for each lesson."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def put(self, start: LearnedStart, by_measurement: Mapping[int, Json]) -> LearnedStart:
        """Add what measurements taught to what is known, and return both; figures that they do not name stay.

        `by_measurement` says which of the start's figures each of them gave.
        """
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
        rows = [
            {**values, "measurement_id": number, "learned": learned}
            for number, learned in by_measurement.items()
            if learned
        ]
        async with self._transactions.write() as connection:
            row = (await connection.execute(merged.returning(*table.c))).one()
            if rows:
                await connection.execute(sa.insert(lessons), rows)
        return _start(row)

    async def forget(self, measurement_id: int) -> bool:
        """Delete a measurement and what it taught, and return whether there was one.

        What others taught of the same start is in force again as if it had never been.
        """
        taught = sa.select(*(lessons.c[name] for name in KEY_NAMES)).where(lessons.c.measurement_id == measurement_id)
        delete = sa.delete(measurements).where(measurements.c.id == measurement_id)
        async with self._transactions.write() as connection:
            keys = [LearnedKey(**row._mapping) for row in (await connection.execute(taught.distinct())).all()]
            for key in keys:
                # A lesson that is just being added waits for this, or this for it.
                start = sa.select(learned_starts.c.gpu).where(_is(learned_starts, key))
                await connection.execute(start.with_for_update())
            found = (await connection.execute(delete)).rowcount > 0
            for key in keys:
                await _sum_up(connection, key)
        return found

    async def all(self) -> tuple[LearnedStart, ...]:
        """Return everything that was learned."""
        async with self._transactions.read() as connection:
            rows = (await connection.execute(sa.select(learned_starts))).all()
        return tuple(_start(row) for row in rows)


async def _sum_up(connection: AsyncConnection, key: LearnedKey) -> None:
    """Write what the lessons left of a start say together; without any it is forgotten."""
    query = sa.select(lessons.c.learned, lessons.c.provenance).where(_is(lessons, key)).order_by(lessons.c.id)
    left = (await connection.execute(query)).all()
    if not left:
        await connection.execute(sa.delete(learned_starts).where(_is(learned_starts, key)))
        return
    learned = {name: value for row in left for name, value in row.learned.items()}
    change = sa.update(learned_starts).where(_is(learned_starts, key))
    await connection.execute(change.values(learned=learned, provenance=left[-1].provenance))


def _is(table: sa.Table, key: LearnedKey) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == value for name, value in asdict(key).items()))


def _start(row: sa.Row[tuple[object, ...]]) -> LearnedStart:
    named = row._mapping
    key = LearnedKey(**{name: named[name] for name in KEY_NAMES})
    return LearnedStart(key=key, learned=named["learned"], provenance=named["provenance"])
