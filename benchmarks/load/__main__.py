"""Print how the service bears load, beside a route of the same server that does nothing: `python -m benchmarks.load`.

One API process on an embedded PostgreSQL, and this client beside it. Ratios are of the server's own
processor time, which other work on the machine disturbs least; rates are what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load.asked import NO_OP, QUANTIZATION, fresh
from benchmarks.load.driver import Connection, Load, MakeRequest, closed_loop, get, open_loop
from benchmarks.load.events import hold_streams
from benchmarks.load.server import running_api

CONNECTIONS = 8
ROUND_SECONDS = 5.0
ROUNDS = 2
STEADY_SECONDS = 10.0
STEADY_FRACTION = 0.8
STREAMS = 500
PROBES = 50
WARMING_SECONDS = 2.0


@dataclass(slots=True)
class Case:
    """One kind of request, and what its rounds took."""

    name: str
    request: MakeRequest
    requests: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0

    def add(self, load: Load, processor_seconds: float) -> None:
        """Count a further round."""
        self.requests += load.requests
        self.seconds += load.seconds
        self.processor_seconds += processor_seconds

    @property
    def processor_ms(self) -> float:
        """Return the server's processor time of one request."""
        return 1000 * self.processor_seconds / self.requests


async def measure(port: int, server: psutil.Process) -> None:
    """Print every table."""
    plan_id = json.loads(await Connection(port).ask(fresh(0)))["plan_id"]
    stored_plan = get(f"/plans/{plan_id}")
    offset = 1

    def next_fresh(number: int) -> bytes:
        return fresh(offset + number)

    cases = [
        Case("GET /healthz (does nothing)", lambda _: NO_OP),
        Case("GET /plans/{plan_id}, stored", lambda _: stored_plan),
        Case("POST /plan/infer, fixed layout, fresh", next_fresh),
    ]
    for turn in range(ROUNDS + 1):
        for case in cases:
            before = _processor_seconds(server)
            seconds = ROUND_SECONDS if turn else WARMING_SECONDS
            load = await closed_loop(port, case.request, connections=CONNECTIONS, seconds=seconds)
            if turn:
                case.add(load, _processor_seconds(server) - before)
            if case.request is next_fresh:
                offset += load.requests
    _print_rates(cases)
    print()
    print(f"| at {STEADY_FRACTION:.0%} of that rate | requests/s | p50, ms | p99, ms |\n|---|--:|--:|--:|")
    for case in cases[1:]:
        rate = STEADY_FRACTION * case.requests / case.seconds
        load = await open_loop(port, case.request, requests_per_second=rate, seconds=STEADY_SECONDS)
        if case.request is next_fresh:
            offset += load.requests
        p50, p99 = (1000 * load.latency_seconds(fraction) for fraction in (0.5, 0.99))
        print(f"| {case.name} | {rate:.0f} | {p50:.1f} | {p99:.1f} |")
    print()
    streams = await hold_streams(port, json.dumps(QUANTIZATION).encode(), STREAMS, probes=PROBES)
    print(
        f"{streams.opened} streams of a job's events open, {streams.told} told of its end within "
        f"{streams.seconds:.2f} s; the slowest of {PROBES} requests beside them took "
        f"{1000 * streams.slowest_health_seconds:.0f} ms; memory {_memory_mb(server):.0f} MB."
    )


def _print_rates(cases: list[Case]) -> None:
    yardstick = cases[0].processor_ms
    print("| request | requests/s | processor time of the server, ms | share of the no-op's rate |\n|---|--:|--:|--:|")
    for case in cases:
        print(
            f"| {case.name} | {case.requests / case.seconds:.0f} | {case.processor_ms:.2f} "
            f"| {yardstick / case.processor_ms:.2f} |"
        )


def _processor_seconds(server: psutil.Process) -> float:
    times = server.cpu_times()
    return float(times.user + times.system)


def _memory_mb(server: psutil.Process) -> float:
    return float(server.memory_info().rss) / 1e6


def main() -> None:
    """Start a server, load it, and print the tables as Markdown."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    load = os.getloadavg()[0]
    # Full collections of the sender's own objects would count as the service's time.
    gc.disable()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {load:.1f} before\n")
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-load-") as folder,
        running_api(Path(folder), durable=True) as (base_url, process_id),
    ):
        asyncio.run(measure(int(base_url.rpartition(":")[2]), psutil.Process(process_id)))


if __name__ == "__main__":
    main()
