"""The way to the database for all that is not asked with every plan (that goes by a `PersistentConnection`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from plimsoll.service.ground.errors import DatabaseUnavailable, Unstorable
from plimsoll.service.persistence.failures import failure_of, unavailable
from plimsoll.service.persistence.last_write import LastWrite
from plimsoll.service.persistence.under_way import UnderWay


class Transactions:
    """Hands out connections of one pool, in a transaction or for a single read."""

    def __init__(self, engine: AsyncEngine, last_write: LastWrite | None = None) -> None:
        self._last_write = last_write or LastWrite()
        self._under_way = UnderWay()
        self._writing = engine
        # A single SELECT needs no transaction: this spares it two round trips.
        self._reading = engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction: committed on leaving, rolled back on any error.

        Raises DatabaseUnavailable and Unstorable.
        """
        try:
            with self._under_way.one():
                async with _translated(), self._writing.begin() as connection:
                    yield connection
        except DatabaseUnavailable as error:
            self._last_write.failed(error)
            raise
        self._last_write.succeeded()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection on which every statement stands for itself.

        Raises DatabaseUnavailable and Unstorable.
        """
        with self._under_way.one():
            async with _translated(), self._reading.connect() as connection:
                yield connection

    async def close(self) -> None:
        """Wait until every connection has been handed back, and hand none out any more."""
        await self._under_way.end()


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except (PoolTimeoutError, ConnectionError) as error:
        raise unavailable(error) from error
    except DBAPIError as error:
        failure = failure_of(error.orig)
        if failure is None:
            raise
        raise failure from error
    except UnicodeEncodeError as error:
        raise Unstorable from error
