"""A small HTTP client that keeps a server busy: as fast as it goes, or at a given rate.

At a given rate each request begins when it is due, whether or not others are still under way, and
its time counts from then: a server that falls behind shows it. What is refused for its load (429, 503) is counted
and not asked again. How late the sender itself is for what it meant to do is told beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

# How often the sender looks whether it is late itself.
LAG_EVERY_SECONDS = 0.005
REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

MakeRequest = Callable[[int], bytes]
"""From a request's number to the bytes that are sent."""


class Refused(Exception):
    """The server said that it has too much to do."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What became of requests within a stretch of time: every one's seconds, in order of size.

    `refusals` has those of requests that were refused, by the code of the problem; `lags` how late the sender was.
    """

    began: float
    ended: float
    latencies: tuple[float, ...]
    refusals: Mapping[str, tuple[float, ...]]
    lags: tuple[float, ...]

    @property
    def requests(self) -> int:
        """Return how many were answered."""
        return len(self.latencies)

    @property
    def refused(self) -> int:
        """Return how many were refused."""
        return sum(len(seconds) for seconds in self.refusals.values())

    @property
    def seconds(self) -> float:
        """Return how long it took in all."""
        return self.ended - self.began

    @property
    def requests_per_second(self) -> float:
        """Return the rate of answers over the whole time."""
        return self.requests / self.seconds


def part_within(seconds: Sequence[float], fraction: float) -> float:
    """Return the time that this part of them stayed within, given in order of size; not a number without any."""
    return seconds[min(int(fraction * len(seconds)), len(seconds) - 1)] if seconds else math.nan


@dataclass(slots=True, kw_only=True)
class _Notes:
    """What happened until now."""

    began: float = field(default_factory=time.perf_counter)
    latencies: list[float] = field(default_factory=list)
    refusals: dict[str, list[float]] = field(default_factory=dict)
    lags: list[float] = field(default_factory=list)

    async def ask(self, connection: Connection, request: bytes, since: float) -> None:
        """Ask, and note how long after `since` it was answered or refused."""
        try:
            await connection.ask(request)
        except Refused as refused:
            self.refusals.setdefault(refused.code, []).append(time.perf_counter() - since)
        else:
            self.latencies.append(time.perf_counter() - since)

    async def watch_lag(self) -> None:
        """Note again and again how much later than meant the event loop comes back."""
        while True:
            due = time.perf_counter() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self.lags.append(max(0.0, time.perf_counter() - due))

    def load(self) -> Load:
        """Return it in order."""
        return Load(
            began=self.began,
            ended=time.perf_counter(),
            latencies=tuple(sorted(self.latencies)),
            refusals={code: tuple(sorted(seconds)) for code, seconds in self.refusals.items()},
            lags=tuple(sorted(self.lags)),
        )


class Connection:
    """One kept connection; opened with the first request, and again where the server closed it as idle."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_new = True

    async def ask(self, request: bytes, *, expected: int = 200) -> bytes:
        """Send a request and return its answer's body; raises Refused for 429 and 503, RuntimeError for others."""
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
        status = int(head.split(maxsplit=2)[1])
        if status in REFUSALS:
            raise Refused(json.loads(body)["code"])
        if status != expected:
            raise RuntimeError(body.decode(errors="replace")[:500])
        return body

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def get(path: str, *, key: str | None = None) -> bytes:
    """Return a GET request, of the holder of an API key where one is given."""
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{_shown(key)}\r\n".encode()


def post(path: str, body: bytes, *, key: str | None = None) -> bytes:
    """Return a POST request of a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{_shown(key)}content-type: application/json"
    return f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _shown(key: str | None) -> str:
    return "" if key is None else f"authorization: Bearer {key}\r\n"


async def closed_loop(port: int, request: MakeRequest, *, connections: int, seconds: float) -> Load:
    """Ask on so many connections at once, each as soon as it was answered."""
    notes = _Notes()
    numbers = itertools.count()

    async def client() -> None:
        connection = Connection(port)
        while (sent := time.perf_counter()) - notes.began < seconds:
            await notes.ask(connection, request(next(numbers)), sent)
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return notes.load()


async def open_loop(port: int, request: MakeRequest, *, requests_per_second: float, seconds: float) -> Load:
    """Ask at a steady rate, on as many connections as that takes."""
    notes = _Notes()
    opened: list[Connection] = []
    idle: list[Connection] = []

    async def one(number: int, due: float) -> None:
        if idle:
            connection = idle.pop()
        else:
            connection = Connection(port)
            opened.append(connection)
        await notes.ask(connection, request(number), due)
        idle.append(connection)

    watch = asyncio.create_task(notes.watch_lag())
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(int(requests_per_second * seconds)):
                due = notes.began + number / requests_per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(one(number, due))
    finally:
        watch.cancel()
        for connection in opened:
            connection.close()
    return notes.load()
