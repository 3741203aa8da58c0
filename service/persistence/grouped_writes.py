"""Writes that come at the same time share a transaction.

A commit waits for the disk, and costs the same for one row as for a hundred.
While one transaction is on its way, what arrives gathers, and goes together in the
next one. Nobody waits for others to arrive, and nobody is told that a row is
stored before the transaction that holds it has committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import psycopg
from sqlalchemy.exc import IntegrityError

from service.errors import DatabaseUnavailable, Unstorable

Record = TypeVar("Record")
Outcome = TypeVar("Outcome")

# Bounds the size of one transaction; a hundred plans of 100 kB are 10 MB.
_LARGEST_GROUP = 100


class GroupedWrites(Generic[Record, Outcome]):
    """Turns many small writes into few transactions, on one event loop.

    `write` returns what became of each of its records, in their order.
    """

    def __init__(self, write: Callable[[Sequence[Record]], Awaitable[Sequence[Outcome]]]) -> None:
        self._write = write
        self._waiting: deque[tuple[Record, asyncio.Future[Outcome]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, record: Record) -> Outcome:
        """Write a record, and return what became of it once it is committed; raise what the write raised."""
        stored: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, stored))
        if self._task is None:
            self._task = asyncio.create_task(self._write_all(), name="grouped writes")
        return await stored

    async def close(self) -> None:
        """Wait until everything that was put is written."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                size = min(len(self._waiting), _LARGEST_GROUP)
                group = [self._waiting.popleft() for _ in range(size)]
                try:
                    await self._write_group([entry for entry in group if not entry[1].cancelled()])
                finally:
                    _fail(group, DatabaseUnavailable("The service stopped before the write was committed."))
        finally:
            self._task = None
            _fail(self._waiting, DatabaseUnavailable("The service stopped before the write was committed."))
            self._waiting.clear()

    async def _write_group(self, group: Sequence[tuple[Record, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._write([record for record, _ in group])
        except (Unstorable, IntegrityError, psycopg.IntegrityError) as error:
            # One record is at fault. Alone, it fails alone.
            if len(group) == 1:
                _fail(group, error)
                return
            for entry in group:
                await self._write_group([entry])
        except Exception as error:  # noqa: BLE001 - not swallowed: each of those who wait raises it
            _fail(group, error)
        else:
            for (_, stored), outcome in zip(group, outcomes, strict=True):
                if not stored.done():
                    stored.set_result(outcome)


def _fail(
    group: Sequence[tuple[Record, asyncio.Future[Outcome]]] | deque[tuple[Record, asyncio.Future[Outcome]]],
    error: Exception,
) -> None:
    for _, stored in group:
        if not stored.done():
            stored.set_exception(error)
