"""A small HTTP client that keeps a server busy: as fast as it goes, or at a given rate.

At a given rate each request begins when it is due, whether or not others are still under way, and
its time counts from then: a server that falls behind shows it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

MakeRequest = Callable[[int], bytes]
"""From a request's number to the bytes that are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was answered: how many requests in how long, and each one's seconds in order of size."""

    requests: int
    seconds: float
    latencies: tuple[float, ...]

    @property
    def requests_per_second(self) -> float:
        """Return the rate over the whole time."""
        return self.requests / self.seconds

    def latency_seconds(self, fraction: float) -> float:
        """Return the time that this part of the requests stayed within."""
        return self.latencies[min(int(fraction * len(self.latencies)), len(self.latencies) - 1)]


class Connection:
    """One kept connection; opened with the first request, and again where the server closed it as idle."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_new = True

    async def ask(self, request: bytes, *, expected: int = 200) -> bytes:
        """Send a request and return the body of its answer; raises RuntimeError for another status."""
        try:
            return await self._asked(request, expected)
        except (asyncio.IncompleteReadError, ConnectionError):
            if self._is_new:
                raise
            # The server closed it meanwhile, for it was idle; as any client, ask on a new one.
            self.close()
            return await self._asked(request, expected)

    async def _asked(self, request: bytes, expected: int) -> bytes:
        self._is_new = self._streams is None
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if int(head.split(maxsplit=2)[1]) != expected:
            raise RuntimeError(body.decode(errors="replace")[:500])
        return body

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def get(path: str) -> bytes:
    """Return a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: plimsoll\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    """Return a POST request of a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nhost: plimsoll\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


async def closed_loop(port: int, request: MakeRequest, *, connections: int, seconds: float) -> Load:
    """Ask on so many connections at once, each as soon as it was answered."""
    latencies: list[float] = []
    began = time.perf_counter()
    numbers = itertools.count()

    async def client() -> None:
        connection = Connection(port)
        while (sent := time.perf_counter()) - began < seconds:
            await connection.ask(request(next(numbers)))
            latencies.append(time.perf_counter() - sent)
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return _load(latencies, began)


async def open_loop(port: int, request: MakeRequest, *, requests_per_second: float, seconds: float) -> Load:
    """Ask at a steady rate, on as many connections as that takes."""
    latencies: list[float] = []
    idle: list[Connection] = []
    began = time.perf_counter()

    async def one(number: int, due: float) -> None:
        connection = idle.pop() if idle else Connection(port)
        await connection.ask(request(number))
        latencies.append(time.perf_counter() - due)
        idle.append(connection)

    async with asyncio.TaskGroup() as group:
        for number in range(int(requests_per_second * seconds)):
            due = began + number / requests_per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(number, due))
    for connection in idle:
        connection.close()
    return _load(latencies, began)


def _load(latencies: list[float], began: float) -> Load:
    return Load(requests=len(latencies), seconds=time.perf_counter() - began, latencies=tuple(sorted(latencies)))
