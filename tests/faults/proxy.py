"""The network between the service and its database: a proxy on loopback that can be cut, held up and healed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Condition = Literal["up", "cut", "silent"]

CHUNK_BYTES = 2**16
THREAD_SECONDS = 30.0


class Proxy:
    """Passes connections from a port of this machine on to a Unix socket.

    Cut, it resets what is open and refuses what is new. Silent, it takes everything and passes nothing on,
    as a network does that loses packets; what it held is passed on when it is up again.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._is_up = asyncio.Event()
        self._condition: Condition = "up"
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        self._ask(self._listen)

    def stop(self) -> None:
        self._ask(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(THREAD_SECONDS)
        self._loop.close()

    def set(self, condition: Condition) -> None:
        """Let the network be so from now on."""

        async def change() -> None:
            self._condition = condition
            self._is_up.set() if condition == "up" else self._is_up.clear()
            if condition == "cut":
                for writer in list(self._writers):
                    writer.transport.abort()

        self._ask(change)

    def _ask(self, work: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(THREAD_SECONDS)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._is_up.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._condition == "cut":
            writer.transport.abort()
            return
        self._writers.add(writer)
        with suppress(OSError):
            await self._is_up.wait()
            there_reader, there_writer = await asyncio.open_unix_connection(self._target)
            self._writers.add(there_writer)
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
            self._writers.discard(there_writer)
        self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._is_up.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextmanager
def proxied(unix_socket: str) -> Iterator[Proxy]:
    """Yield a proxy to a Unix socket, on a free port."""
    proxy = Proxy(unix_socket)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
