"""A client that takes a fraction of what any server takes for a request, so that the server is what is measured."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import uvloop

from benchmarks.load.driver import MakeRequest
from benchmarks.load.steady import processor_seconds

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How many requests were answered within a stretch of time, and the server's processor time for them."""

    requests: int
    seconds: float
    processor_seconds: float

    @property
    def requests_per_second(self) -> float:
        """Return the rate by the wall."""
        return self.requests / self.seconds

    @property
    def processor_ms(self) -> float:
        """Return the server's processor time of one request."""
        return 1000 * self.processor_seconds / self.requests


class _Sender(asyncio.Protocol):
    """Sends a request as soon as the one before it is answered, until time is up."""

    def __init__(self, request: MakeRequest, numbers: Iterator[int], until: float) -> None:
        self._request = request
        self._numbers = numbers
        self._until = until
        self._received = b""
        self.answered = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(HEAD_END)
        at = head.find(LENGTH)
        if at < 0 or len(body) < int(head[at + len(LENGTH) :].partition(b"\r\n")[0]):
            return
        if b" 200 " not in head[:13]:
            self._end(RuntimeError(self._received.decode(errors="replace")[:1000]))
            return
        self._received = b""
        self.answered += 1
        if time.perf_counter() < self._until:
            self._ask()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("The server closed the connection."))

    def _ask(self) -> None:
        self._transport.write(self._request(next(self._numbers)))  # type: ignore[attr-defined]

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self._transport.close()


def sent_round(port: int, request: MakeRequest, server: psutil.Process, *, connections: int, seconds: float) -> Round:
    """Ask on so many connections at once, each as soon as it was answered; raises RuntimeError for any but a 200."""

    async def sent() -> Round:
        numbers = itertools.count()
        before, began = processor_seconds(server), time.perf_counter()
        senders = [_Sender(request, numbers, began + seconds) for _ in range(connections)]
        loop = asyncio.get_running_loop()
        for sender in senders:
            await loop.create_connection(lambda sender=sender: sender, "127.0.0.1", port)
        await asyncio.gather(*(sender.done for sender in senders))
        return Round(
            requests=sum(sender.answered for sender in senders),
            seconds=time.perf_counter() - began,
            processor_seconds=processor_seconds(server) - before,
        )

    return uvloop.run(sent())
