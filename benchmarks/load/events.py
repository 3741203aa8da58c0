"""Many open streams of one job's events."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.load.driver import Connection, get, post


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How many streams were open, how many were told the end, and how soon after it the last of them."""

    opened: int
    told: int
    seconds: float
    slowest_health_seconds: float
    """Of requests sent while all streams were open."""


async def hold_streams(port: int, quantization: bytes, count: int, *, probes: int) -> Streams:
    """Queue a job that nobody works on, follow it on so many connections, and cancel it."""
    connection = Connection(port)
    body = await connection.ask(post("/quantize", quantization), expected=202)
    job_id = body.decode().partition('"job_id":"')[2].partition('"')[0]
    streams = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get(f"/jobs/{job_id}/events"))
        streams.append((reader, writer))
    for reader, _ in streams:
        await reader.readuntil(b"queued")
    # The first one was idle meanwhile, and may have been closed for it.
    connection.close()
    connection = Connection(port)
    slowest = 0.0
    for _ in range(probes):
        sent = time.perf_counter()
        await connection.ask(get("/healthz"))
        slowest = max(slowest, time.perf_counter() - sent)
    began = time.perf_counter()
    await connection.ask(post(f"/jobs/{job_id}/cancel", b"{}"))
    ends = await asyncio.gather(*(reader.readuntil(b"cancelled") for reader, _ in streams), return_exceptions=True)
    seconds = time.perf_counter() - began
    for _, writer in streams:
        writer.close()
    connection.close()
    told = sum(isinstance(end, bytes) for end in ends)
    return Streams(opened=count, told=told, seconds=seconds, slowest_health_seconds=slowest)
