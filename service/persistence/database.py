"""The database as the rest of the service sees it: a few stores, opened and closed together."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from plimsoll.service.ground.database_address import (
    CONNECT_TIMEOUT_SECONDS,
    KEEPALIVE,
    SILENCE_LIMITS,
    libpq_url,
    sqlalchemy_url,
)
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.calibrations import CalibrationStore
from plimsoll.service.persistence.job_changes import JobChanges
from plimsoll.service.persistence.jobs import JobStore
from plimsoll.service.persistence.keys import KeyStore
from plimsoll.service.persistence.last_write import LastWrite
from plimsoll.service.persistence.learned_starts import LearnedStartStore
from plimsoll.service.persistence.measurements import MeasurementStore
from plimsoll.service.persistence.models_seen import ModelsSeenStore
from plimsoll.service.persistence.persistent_connection import PersistentConnection
from plimsoll.service.persistence.plans import PlanStore
from plimsoll.service.persistence.retention import ExpiredRows
from plimsoll.service.persistence.steps import VERSION_TABLE, latest_step
from plimsoll.service.persistence.transactions import Transactions

# Whatever is stored or queued needs these, and a server that takes writes. No row is counted: anyone may ask.
_READINESS = f"""
    SELECT (SELECT version_num FROM {VERSION_TABLE}) AS step,
           pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean AS takes_no_writes,
           EXISTS (SELECT FROM plans), EXISTS (SELECT FROM jobs), EXISTS (SELECT FROM procrastinate_jobs)
"""  # noqa: S608 - a constant of ours
# A table's file has to grow for it (by 256 KiB), and its making is logged; nothing of it stays.
_WRITE = "CREATE TEMPORARY TABLE tried ON COMMIT DROP AS SELECT generate_series(1, 4000)"
# How long a request waits for a free connection before it is told that there is none.
_POOL_TIMEOUT_SECONDS = 10


class Database:
    """One pool of connections, two more for plans alone, and the stores on them.

    Making one connects to nothing; connections are opened as they are needed,
    and one that the server closed is replaced when it is next taken.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        queue_limit: int | None = None,
        key_job_limit: int | None = None,
        last_write: LastWrite | None = None,
    ) -> None:
        """Set up the pool; raises ValueError where `url` does not name a PostgreSQL.

        `pool_size` and the limits default to those of the settings.
        """
        defaults = Settings.model_fields
        self._engine = create_async_engine(
            sqlalchemy_url(url),
            pool_size=pool_size or defaults["database_pool_size"].default,
            max_overflow=0,
            pool_timeout=_POOL_TIMEOUT_SECONDS,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS, **KEEPALIVE},
        )
        sa.event.listen(self._engine.sync_engine, "connect", _limit_silence)
        limit = defaults["queue_limit"].default if queue_limit is None else queue_limit
        key_limit = defaults["key_job_limit"].default if key_job_limit is None else key_job_limit
        self._last_write = last_write or LastWrite()
        self._transactions = Transactions(self._engine, self._last_write)
        # Apart from each other: who looks for a plan does not wait for the disk.
        reading = PersistentConnection(libpq_url(url))
        writing = PersistentConnection(libpq_url(url), last_write=self._last_write)
        self._kept = (reading, writing)
        self._latest_step = latest_step()
        self.plans = PlanStore(self._transactions, reading=reading, writing=writing)
        self.jobs = JobStore(self._transactions, queue_limit=limit, key_job_limit=key_limit)
        self.job_changes = JobChanges(libpq_url(url))
        self.measurements = MeasurementStore(self._transactions)
        self.models_seen = ModelsSeenStore(self._transactions)
        self.calibrations = CalibrationStore(self._transactions)
        self.learned_starts = LearnedStartStore(self._transactions)
        self.keys = KeyStore(self._transactions, reading=reading, writing=writing)
        self.expired = ExpiredRows(self._transactions)

    async def open(self) -> None:
        """Check that the database answers; raises DatabaseUnavailable."""
        await self.ping()

    async def close(self) -> None:
        """Store what is still on its way, wait for what is being read, and close every connection."""
        await self.plans.close()
        await self.models_seen.close()
        await self.job_changes.close()
        await asyncio.gather(self._transactions.close(), *(connection.close() for connection in self._kept))
        await self._engine.dispose()

    async def ping(self) -> None:
        """Make one round trip; raises DatabaseUnavailable."""
        async with self._transactions.read() as connection:
            await connection.execute(sa.select(sa.literal(1)))

    async def check_ready(self) -> None:
        """Raise DatabaseUnavailable unless plans can be stored and jobs queued."""
        async with self._transactions.read() as connection:
            row = (await connection.execute(sa.text(_READINESS))).one()
        if row.takes_no_writes:
            raise DatabaseUnavailable("The database takes no writes: it is a standby, or set to be read alone.")
        # A later version's steps only add to what this one reads.
        if row.step < self._latest_step:
            raise DatabaseUnavailable(
                f"The database is at step {row.step} and this version needs {self._latest_step}: "
                "run `plimsoll db upgrade` first."
            )

        await self._check_writes()

    async def _check_writes(self) -> None:
        """Raise DatabaseUnavailable where the latest write failed; one that is too long ago is followed by another."""
        if self._last_write.take_turn():
            async with self._transactions.write() as connection:
                await connection.execute(sa.text(_WRITE))
        if self._last_write.failure is not None:
            raise DatabaseUnavailable(f"The latest write failed. {self._last_write.failure.detail}")

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _limit_silence(connection: Any, _record: object) -> None:
    """Set the limits on a new connection, for all its transactions."""
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(SILENCE_LIMITS)
    cursor.close()
    connection.autocommit = False
