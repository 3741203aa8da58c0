"""Single predictions beside what was measured, for a drawing and for a table of all of them."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Sequence
from io import StringIO

from plimsoll.service.measurements.answers import AccuracyPoint
from plimsoll.service.measurements.service import LEVELS
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.paging import LARGEST_PAGE
from plimsoll.service.persistence.records import Measurement

CSV_COLUMNS = (
    "measurement_id", "created_at", "level", "framework", "family", "model", "gpu", "quantity", "predicted", "measured",
    "relative_error", "plan_id", "job_id", "source",
)  # fmt: skip
# A spreadsheet takes text that begins with one of these for a formula; an apostrophe before it makes it text.
# Source: https://owasp.org/www-community/attacks/CSV_Injection
FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")


async def accuracy_points(database: Database, reader: str | None) -> tuple[AccuracyPoint, ...]:
    """Return the newest predictions that were measured; with the id of a key, of plans that it may see.

    One page of records: a drawing could hardly show more of them apart.
    """
    page = await database.measurements.page(reader=reader, limit=LARGEST_PAGE)
    points = (_point(record) for record in page.items)
    return tuple(point for point in points if point is not None)


async def accuracy_csv(database: Database, reader: str | None) -> AsyncIterator[str]:
    """Yield all single measurements as CSV (RFC 4180), newest first, a page of records at a time.

    A line is a record: a validation, or the sizes or the speeds of a report. With the id of a key, those of plans that
    it may see. Raises DatabaseUnavailable before the first piece where there is no database.
    """
    page = await database.measurements.page(reader=reader, limit=LARGEST_PAGE)
    yield _csv_lines([CSV_COLUMNS, *(_csv_row(record) for record in page.items)])
    while page.next_cursor is not None:
        page = await database.measurements.page(reader=reader, limit=LARGEST_PAGE, cursor=page.next_cursor)
        yield _csv_lines([_csv_row(record) for record in page.items])


def _point(record: Measurement) -> AccuracyPoint | None:
    quantity, predicted, measured = _main_quantity(record)
    if not (predicted and measured):
        return None
    return AccuracyPoint(
        level=record.level,
        framework=record.framework,
        gpu=record.gpu,
        model=record.model,
        quantity=quantity,
        predicted=predicted,
        measured=measured,
    )


def _main_quantity(record: Measurement) -> tuple[str, float | None, float | None]:
    """Return name, prediction and measurement of the first quantity that has both, or else was measured at all."""
    named = [quantity for quantities in LEVELS.values() for quantity in quantities if record.measured.get(quantity)]
    both = [quantity for quantity in named if record.predicted.get(quantity)]
    quantity = next(iter(both or named), "")
    return quantity, record.predicted.get(quantity), record.measured.get(quantity)


def _csv_row(record: Measurement) -> tuple[object, ...]:
    words = (record.level, record.framework, record.family or "", record.model, record.gpu)
    quantity, predicted, measured = _main_quantity(record)
    return (
        record.id,
        record.created_at.isoformat(),
        *(_plain(word) for word in words),
        *(quantity, predicted, measured, record.relative_error),
        *(record.plan_id, record.job_id, _plain(record.source)),
    )


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_BEGINNINGS) else text


def _csv_lines(rows: Sequence[Sequence[object]]) -> str:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
