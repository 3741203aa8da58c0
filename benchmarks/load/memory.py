"""Print whether the API's memory stays flat over an hour's requests of a busy site: `python -m benchmarks.load.memory`.

The hour is sent as fast as it is answered. Plans that nobody asked for before are among it, seven times as many as
a process remembers, so that what is kept has reached its bounds in the first part, which the fit leaves out.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.load.asked import NO_OP, QUANTIZATION, fresh
from benchmarks.load.driver import Connection, get, post
from benchmarks.load.server import running_api

CONNECTIONS = 8
# A site with a thousand waiting workloads: each second ten looks at plans, ten probes and one new question; a job a
# minute, cancelled again; a scrape each quarter of a minute.
SECONDS_AN_HOUR = 3_600
LOOKS_A_SECOND = 10
PROBES_A_SECOND = 10
JOB_EVERY_SECONDS = 60
SCRAPE_EVERY_SECONDS = 15
# Of the hour; what a process remembers is full by then, and the fit begins.
WARMING_FRACTION = 0.25
SAMPLE_EVERY_SECONDS = 5
"""Of the hour that is sent, not of the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A straight line through the memory's samples."""

    mb_per_hour: float
    standard_error_mb_per_hour: float
    spread_mb: float
    """Standard deviation of the samples about it."""


def fitted(hours: np.ndarray, sizes_mb: np.ndarray) -> Line:
    """Return the least-squares line through samples; needs three or more."""
    centred = hours - hours.mean()
    slope = float((centred * sizes_mb).sum() / (centred**2).sum())
    rest = sizes_mb - sizes_mb.mean() - slope * centred
    spread = float(np.sqrt((rest**2).sum() / (len(hours) - 2)))
    return Line(
        mb_per_hour=slope,
        standard_error_mb_per_hour=spread / float(np.sqrt((centred**2).sum())),
        spread_mb=spread,
    )


class _Hour:
    """Sends the seconds of an hour, and counts what was sent."""

    def __init__(self, port: int, server: psutil.Process) -> None:
        self._port = port
        self._server = server
        self.requests = 0
        self.hours: list[float] = []
        self.sizes_mb: list[float] = []

    async def send(self, seconds: int) -> None:
        """Send so many seconds' requests, several seconds at once, each on a connection of its own."""
        numbers = iter(range(seconds))
        await asyncio.gather(*(self._client(numbers) for _ in range(CONNECTIONS)))

    async def _client(self, seconds: Iterator[int]) -> None:
        connection = Connection(self._port)
        for second in seconds:
            await self._second(connection, second)
            if second % SAMPLE_EVERY_SECONDS == 0:
                self.hours.append(second / SECONDS_AN_HOUR)
                self.sizes_mb.append(self._server.memory_info().rss / 1e6)
        connection.close()

    async def _second(self, connection: Connection, second: int) -> None:
        plan = json.loads(await self._ask(connection, fresh(1 + second)))
        for _ in range(LOOKS_A_SECOND):
            await self._ask(connection, get(f"/plans/{plan['plan_id']}"))
        for _ in range(PROBES_A_SECOND):
            await self._ask(connection, NO_OP)
        if second % SCRAPE_EVERY_SECONDS == 0:
            await self._ask(connection, get("/metrics"))
        if second % JOB_EVERY_SECONDS == 0:
            job = await self._ask(connection, post("/quantize", json.dumps(QUANTIZATION).encode()), expected=202)
            await self._ask(connection, post(f"/jobs/{json.loads(job)['job']['job_id']}/cancel", b"{}"))

    async def _ask(self, connection: Connection, request: bytes, *, expected: int = 200) -> bytes:
        self.requests += 1
        return await connection.ask(request, expected=expected)


def _report(hour: _Hour, seconds: int, took_seconds: float) -> str:
    hours, sizes = np.array(hour.hours), np.array(hour.sizes_mb)
    is_warm = hours >= WARMING_FRACTION * seconds / SECONDS_AN_HOUR
    line = fitted(hours[is_warm], sizes[is_warm])
    return (
        f"{hour.requests:,} requests of {seconds:,} s of a busy site, sent within {took_seconds:.0f} s. Memory at the "
        f"first sample {sizes[0]:.1f} MB, after a quarter {sizes[is_warm][0]:.1f} MB, at the end {sizes[-1]:.1f} MB; "
        f"from then on {line.mb_per_hour:+.2f} MB an hour (standard error {line.standard_error_mb_per_hour:.2f}, "
        f"spread {line.spread_mb:.2f} MB)."
    )


def main() -> None:
    """Start a server, send the hour, and print the line through its memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS_AN_HOUR, help="of the hour that are sent")
    seconds = parser.parse_args().seconds
    load = os.getloadavg()[0]
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {load:.1f} before\n")
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-memory-") as folder,
        running_api(Path(folder)) as (base_url, process_id),
    ):
        hour = _Hour(int(base_url.rpartition(":")[2]), psutil.Process(process_id))
        began = time.perf_counter()
        asyncio.run(hour.send(seconds))
        print(_report(hour, seconds, time.perf_counter() - began))


if __name__ == "__main__":
    main()
