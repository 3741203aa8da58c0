"""What was predicted, beside what was measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from psycopg import errors as postgres_errors
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from plimsoll.service.ground.errors import PlanNotFound
from plimsoll.service.persistence.keys import readable_by
from plimsoll.service.persistence.paging import newest_first, page_of
from plimsoll.service.persistence.records import AccuracyGroup, Measurement, NewMeasurement, Page
from plimsoll.service.persistence.tables import measurements, plans
from plimsoll.service.persistence.transactions import Transactions

# Every measurement with the family of its plan's model.
_FAMILY = plans.c.model_config["model_type"].astext.label("family")
_PLANNED = measurements.outerjoin(plans, plans.c.plan_id == measurements.c.plan_id)
_RECORDED = sa.select(*measurements.c, _FAMILY).select_from(_PLANNED)


class MeasurementStore:
    """Every validation and every report from a real run."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def add(self, measurement: NewMeasurement) -> Measurement:
        """Store a measurement and return it; that of a job is stored once, and the first one stays.

        Raises PlanNotFound.
        """
        table = measurements
        add = insert(table).values(**asdict(measurement)).on_conflict_do_nothing(index_elements=[table.c.job_id])
        try:
            async with self._transactions.write() as connection:
                added = (await connection.execute(add.returning(table.c.id))).scalar_one_or_none()
                which = table.c.job_id == measurement.job_id if added is None else table.c.id == added
                row = (await connection.execute(_RECORDED.where(which))).one()
        except IntegrityError as error:
            if measurement.plan_id is not None and isinstance(error.orig, postgres_errors.ForeignKeyViolation):
                raise PlanNotFound(measurement.plan_id) from error
            raise
        return Measurement(**row._mapping)

    async def page(
        self,
        *,
        level: str | None = None,
        framework: str | None = None,
        gpu: str | None = None,
        model: str | None = None,
        plan_id: str | None = None,
        reader: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Measurement]:
        """Return measurements, newest first; raises InvalidCursor.

        `reader` is the id of a key: only those of plans that it may see.
        """
        table = measurements
        query: sa.Select[Any] = _RECORDED
        filters = (
            (table.c.level, level),
            (table.c.framework, framework),
            (table.c.gpu, gpu),
            (table.c.model, model),
            (table.c.plan_id, plan_id),
        )
        for column, wanted in filters:
            if wanted is not None:
                query = query.where(column == wanted)
        if reader is not None:
            query = query.where(table.c.plan_id.in_(readable_by(reader)))
        query = newest_first(query, table.c.created_at, table.c.id, limit=limit, cursor=cursor)
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, table.c.created_at, table.c.id, lambda row: Measurement(**row._mapping), limit=limit)

    async def accuracy(self) -> tuple[AccuracyGroup, ...]:
        """Return how far the predictions were off, for each level, framework, family and GPU on record."""
        table = measurements
        error = table.c.relative_error
        keys = (table.c.level, table.c.framework, _FAMILY, table.c.gpu)
        # The family by its name: its expression has a bound value, which PostgreSQL takes for another each time.
        order = (table.c.level, table.c.framework, "family", table.c.gpu)
        query = (
            sa.select(
                *keys,
                sa.func.count().label("count"),
                sa.func.avg(error).label("mean_relative_error"),
                _quantile(0.5, error).label("median_absolute_relative_error"),
                _quantile(0.9, error).label("p90_absolute_relative_error"),
                sa.func.max(sa.func.abs(error)).label("worst_absolute_relative_error"),
            )
            .select_from(_PLANNED)
            .where(error.is_not(None))
            .group_by(*order)
            .order_by(*order)
        )
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return tuple(AccuracyGroup(**row._mapping) for row in rows)


def _quantile(fraction: float, error: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return sa.func.percentile_cont(fraction).within_group(sa.func.abs(error))
