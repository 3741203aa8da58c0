"""Hearing of changed jobs at once, instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql

from plimsoll.service.ground.database_address import KEEPALIVE
from plimsoll.service.persistence.job_rows import JOB_CHANNEL

_RECONNECT_SECONDS = 1.0


class Watch:
    """Tells of the changes of one job since it was last asked."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notice(self) -> None:
        """Record that the job may have changed."""
        self._changed.set()

    async def wait(self, *, timeout_seconds: float) -> bool:
        """Return True once the job may have changed, False when the time is over first.

        A change between two calls is not missed. One may be told that was none, and while the
        database is away none is: look at the job again whichever comes back.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
                self._changed.clear()
                return True
        return False


class JobChanges:
    """One connection that listens for all who watch; opened for the first of them."""

    def __init__(self, libpq_url: str) -> None:
        self._libpq_url = libpq_url
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        """Yield a watch on a job: begin it, then read the job, then wait.

        Needs a running event loop.
        """
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen_for_ever(), name="job changes")
        watch = Watch()
        self._watches[job_id].add(watch)
        try:
            yield watch
        finally:
            self._watches[job_id].discard(watch)
            if not self._watches[job_id]:
                del self._watches[job_id]

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    async def _listen_for_ever(self) -> None:
        while True:
            # A lost connection is not an error here: those who wait look for themselves when
            # their time is over, and hear of everything once the database is back.
            with suppress(psycopg.Error, OSError):
                await self._listen()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(self._libpq_url, autocommit=True, **KEEPALIVE)
        async with connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(JOB_CHANNEL)))
            # What changed before we listened went by unheard.
            for watches in list(self._watches.values()):
                for watch in watches:
                    watch.notice()
            async for notification in connection.notifies():
                for watch in self._watches.get(notification.payload, ()):
                    watch.notice()
