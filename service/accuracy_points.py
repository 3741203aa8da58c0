"""Single predictions beside what was measured, for a drawing."""

from __future__ import annotations

from service.answers import AccuracyPoint
from service.measuring import LEVELS
from service.persistence.database import Database
from service.persistence.paging import LARGEST_PAGE
from service.persistence.records import Measurement


async def accuracy_points(database: Database, reader: str | None) -> tuple[AccuracyPoint, ...]:
    """Return the newest predictions that were measured; with the id of a key, of plans that it may see.

    One page of records: a drawing could hardly show more of them apart.
    """
    page = await database.measurements.page(reader=reader, limit=LARGEST_PAGE)
    points = (_point(record) for record in page.items)
    return tuple(point for point in points if point is not None)


def _point(record: Measurement) -> AccuracyPoint | None:
    for quantity in (quantity for quantities in LEVELS.values() for quantity in quantities):
        predicted, measured = record.predicted.get(quantity), record.measured.get(quantity)
        if predicted and measured:
            return AccuracyPoint(
                level=record.level,
                framework=record.framework,
                gpu=record.gpu,
                model=record.model,
                quantity=quantity,
                predicted=predicted,
                measured=measured,
            )
    return None
