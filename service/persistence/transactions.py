"""The one way to the database, and what its failures are called.

Stores never see a driver's exception: what is the database's trouble becomes
`DatabaseUnavailable`, what no database could hold becomes `Unstorable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import errors as postgres_errors
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.errors import DatabaseUnavailable, Unstorable


class Transactions:
    """Hands out connections of one pool, in a transaction or for a single read."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._writing = engine
        # A single SELECT needs no transaction: this spares it two round trips.
        self._reading = engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection in a transaction: committed on leaving, rolled back on any error.

        Raises DatabaseUnavailable and Unstorable.
        """
        async with _translated(), self._writing.begin() as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection on which every statement stands for itself.

        Raises DatabaseUnavailable and Unstorable.
        """
        async with _translated(), self._reading.connect() as connection:
            yield connection


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, InternalError, PoolTimeoutError, ConnectionError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise DatabaseUnavailable(f"The database does not answer: {reason or type(error).__name__}.") from error
    except ProgrammingError as error:
        if isinstance(error.orig, postgres_errors.UndefinedTable | postgres_errors.UndefinedFunction):
            raise DatabaseUnavailable("The database lacks our tables: run `plimsoll db upgrade` first.") from error
        raise
    except (DataError, UnicodeEncodeError) as error:
        raise Unstorable from error
