"""One connection that stays open for short statements, without a pool's and a query builder's share of their time.

Through those a look at one row costs the processor a millisecond, and by itself a tenth of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from plimsoll.service.ground.database_address import CONNECT_TIMEOUT_SECONDS, KEEPALIVE, SILENCE_LIMITS
from plimsoll.service.ground.errors import DatabaseUnavailable, Unstorable
from plimsoll.service.persistence.failures import failure_of
from plimsoll.service.persistence.last_write import LastWrite
from plimsoll.service.persistence.under_way import UnderWay

_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


class PersistentConnection:
    """A connection on which every statement stands for itself and is committed when it has been answered.

    It is opened with the first statement. One that was lost is replaced, and what was
    asked on it is asked again: ask only what may be done twice.
    """

    def __init__(self, libpq_url: str, *, last_write: LastWrite | None = None) -> None:
        """Name the server; `last_write` is told how each statement ended, where all of them write."""
        self._last_write = last_write
        self._libpq_url = libpq_url
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._opening = asyncio.Lock()
        self._under_way = UnderWay()

    async def rows(self, statement: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows that a statement answers with; raises DatabaseUnavailable and Unstorable."""
        try:
            with self._under_way.one():
                found = await self._found(statement, values)
        except DatabaseUnavailable as error:
            if self._last_write is not None:
                self._last_write.failed(error)
            raise
        if self._last_write is not None:
            self._last_write.succeeded()
        return found

    async def _found(self, statement: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            kept = self._connection
            if kept is not None and not kept.closed:
                try:
                    return await _rows(kept, statement, values)
                except _LOST:
                    if not kept.closed:
                        raise
            return await _rows(await self._opened(), statement, values)
        except psycopg.Error as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error
        except UnicodeEncodeError as error:
            raise Unstorable from error

    async def close(self) -> None:
        """Close the connection once all is answered that was asked on it; none is opened any more."""
        await self._under_way.end()
        if self._connection is not None:
            await self._connection.close()

    async def _opened(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                opened = await psycopg.AsyncConnection.connect(
                    self._libpq_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS, **KEEPALIVE
                )
                try:
                    await opened.execute(SILENCE_LIMITS)
                except BaseException:
                    await opened.close()
                    raise
                self._connection = opened
            return self._connection


async def _rows(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], statement: LiteralString, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement, values)
    return await cursor.fetchall()
