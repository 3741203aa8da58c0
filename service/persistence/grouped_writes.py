"""Writes that come at the same time share a transaction.

A commit waits for the disk, and costs the same for one row as for a hundred.
While one transaction is on its way, what arrives gathers, and goes together in the
next one. Nobody waits for others to arrive, and nobody is told that a row is
stored before the transaction that holds it has committed. Where the database falls
behind, what comes then is refused instead of making all wait longer and longer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg
from sqlalchemy.exc import IntegrityError

from plimsoll.service.ground.errors import DatabaseUnavailable, Overloaded, Unstorable

Record = TypeVar("Record")
Outcome = TypeVar("Outcome")

# Bounds the size of one transaction; a hundred plans of 100 kB are 10 MB.
_LARGEST_GROUP = 100
LONGEST_WAIT_SECONDS = 3.0
"""How long the first that waits may have waited: as long as a search may wait for its turn by default."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Record, Outcome]):
    """A record, whoever waits for it, and since when."""

    record: Record
    stored: asyncio.Future[Outcome]
    since: float


class GroupedWrites(Generic[Record, Outcome]):
    """Turns many small writes into few transactions, on one event loop.

    `write` gets one record or more, and returns what became of each, in their order.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Record]], Awaitable[Sequence[Outcome]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._waiting: deque[_Waiting[Record, Outcome]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, record: Record) -> Outcome:
        """Write a record, and return what became of it once it is committed; raise what the write raised.

        Raises Overloaded, with nothing written, as `check_backlog` does.
        """
        self.check_backlog()
        stored: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(record, stored, self._clock()))
        if self._task is None:
            self._task = asyncio.create_task(self._write_all(), name="grouped writes")
        return await stored

    def check_backlog(self) -> None:
        """Raise Overloaded while the first that waits has waited too long."""
        if self._waiting and (waited := self._clock() - self._waiting[0].since) > LONGEST_WAIT_SECONDS:
            raise Overloaded(waiting=len(self._waiting), retry_after_seconds=math.ceil(waited), until="stored")

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
                    if awaited := [entry for entry in group if not entry.stored.cancelled()]:
                        await self._write_group(awaited)
                finally:
                    _fail(group, DatabaseUnavailable("The service stopped before the write was committed."))
        finally:
            self._task = None
            _fail(self._waiting, DatabaseUnavailable("The service stopped before the write was committed."))
            self._waiting.clear()

    async def _write_group(self, group: Sequence[_Waiting[Record, Outcome]]) -> None:
        try:
            outcomes = await self._write([entry.record for entry in group])
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
            for entry, outcome in zip(group, outcomes, strict=True):
                if not entry.stored.done():
                    entry.stored.set_result(outcome)


def _fail(group: Iterable[_Waiting[Record, Outcome]], error: Exception) -> None:
    for entry in group:
        if not entry.stored.done():
            entry.stored.set_exception(error)
