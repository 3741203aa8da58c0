"""A site's own efficiencies, each fit kept beside the ones before it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on, insert

from plimsoll.service.persistence.records import Calibration
from plimsoll.service.persistence.tables import hardware_calibrations
from plimsoll.service.persistence.transactions import Transactions


class CalibrationStore:
    """Every calibration; the latest of a GPU is the one in force."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def put(self, calibration: Calibration) -> None:
        """Store a calibration; one that is stored already is in force again from now."""
        values = {
            "gpu": calibration.gpu,
            "revision": calibration.revision,
            "efficiencies": calibration.efficiencies,
            "report": calibration.report,
        }
        table = hardware_calibrations
        again = {"created_at": sa.func.now(), "efficiencies": calibration.efficiencies, "report": calibration.report}
        store = insert(table).values(**values).on_conflict_do_update(index_elements=table.primary_key, set_=again)
        async with self._transactions.write() as connection:
            await connection.execute(store)

    async def find(self, gpu: str, revision: str | None = None) -> Calibration | None:
        """Return a GPU's calibration of that revision, or the one in force; None where there is none."""
        table = hardware_calibrations
        query = sa.select(table).where(table.c.gpu == gpu).order_by(table.c.created_at.desc()).limit(1)
        if revision is not None:
            query = query.where(table.c.revision == revision)
        async with self._transactions.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Calibration(**row._mapping)

    async def delete(self, gpu: str) -> bool:
        """Forget every calibration of a GPU; return whether there was any."""
        forget = sa.delete(hardware_calibrations).where(hardware_calibrations.c.gpu == gpu)
        async with self._transactions.write() as connection:
            return (await connection.execute(forget)).rowcount > 0

    async def in_force(self) -> dict[str, Calibration]:
        """Return the latest calibration of each GPU that has one."""
        table = hardware_calibrations
        query = sa.select(table).ext(distinct_on(table.c.gpu)).order_by(table.c.gpu, table.c.created_at.desc())
        async with self._transactions.read() as connection:
            rows = (await connection.execute(query)).all()
        return {row.gpu: Calibration(**row._mapping) for row in rows}
