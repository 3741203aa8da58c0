"""Print how the service bears load, beside a route of the same server that does nothing: `python -m benchmarks.load`.

One API process on an embedded PostgreSQL, and this client beside it. Ratios are of the server's own
processor time, which other work on the machine disturbs least; rates are what was seen. `--steady-only` leaves out
all but the load below capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import itertools
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load.asked import NO_OP, QUANTIZATION, fresh
from benchmarks.load.driver import Connection, Load, MakeRequest, closed_loop, get
from benchmarks.load.events import hold_streams
from benchmarks.load.pace import PaceWatch, watched_pace
from benchmarks.load.server import running_api
from benchmarks.load.steady import CONNECTIONS, FRACTION, HEADER, Round, processor_seconds, steady_round, summary

ROUND_SECONDS = 5.0
ROUNDS = 2
STEADY_ROUNDS = 4
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


class _Fresh:
    """Gives every fresh request a number of its own."""

    def __init__(self) -> None:
        self._sent = itertools.count(1)

    def __call__(self, _number: int) -> bytes:
        return fresh(next(self._sent))


async def measure(port: int, server: psutil.Process, watch: PaceWatch, *, steady_only: bool) -> None:
    """Print every table."""
    plan_id = json.loads(await Connection(port).ask(fresh(0)))["plan_id"]
    stored_plan = get(f"/plans/{plan_id}")
    cases = [
        Case("GET /healthz (does nothing)", lambda _: NO_OP),
        Case("GET /plans/{plan_id}, stored", lambda _: stored_plan),
        Case("POST /plan/infer, fixed layout, fresh", _Fresh()),
    ]
    for turn in range(1 if steady_only else ROUNDS + 1):
        for case in cases:
            before = processor_seconds(server)
            seconds = ROUND_SECONDS if turn else WARMING_SECONDS
            load = await closed_loop(port, case.request, connections=CONNECTIONS, seconds=seconds)
            if turn:
                case.add(load, processor_seconds(server) - before)
    if not steady_only:
        _print_rates(cases)
        print()
    await _print_steady(port, server, watch, cases[1:])
    if steady_only:
        return
    print()
    streams = await hold_streams(port, json.dumps(QUANTIZATION).encode(), STREAMS, probes=PROBES)
    print(
        f"{streams.opened} streams of a job's events open, {streams.told} told of its end within "
        f"{streams.seconds:.2f} s; the slowest of {PROBES} requests beside them took "
        f"{1000 * streams.slowest_health_seconds:.0f} ms; memory {_memory_mb(server):.0f} MB."
    )


async def _print_steady(port: int, server: psutil.Process, watch: PaceWatch, cases: list[Case]) -> None:
    print(f"At {FRACTION:.0%} of the most that was measured right before:\n\n{HEADER}")
    rounds: dict[str, list[Round]] = {case.name: [] for case in cases}
    for _ in range(STEADY_ROUNDS):
        for case in cases:
            done = await steady_round(port, case.request, server)
            rounds[case.name].append(done)
            print(done.row(case.name, watch), flush=True)
    print()
    for name, of_one in rounds.items():
        print(summary(name, of_one))


def _print_rates(cases: list[Case]) -> None:
    yardstick = cases[0].processor_ms
    print("| request | requests/s | processor time of the server, ms | share of the no-op's rate |\n|---|--:|--:|--:|")
    for case in cases:
        print(
            f"| {case.name} | {case.requests / case.seconds:.0f} | {case.processor_ms:.2f} "
            f"| {yardstick / case.processor_ms:.2f} |"
        )


def _memory_mb(server: psutil.Process) -> float:
    return float(server.memory_info().rss) / 1e6


def main() -> None:
    """Start a server, load it, and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steady-only", action="store_true")
    steady_only = parser.parse_args().steady_only
    load = os.getloadavg()[0]
    # Full collections of the sender's own objects would count as the service's time.
    gc.disable()
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {load:.1f} before\n")
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-load-") as folder,
        running_api(Path(folder), durable=True) as (base_url, process_id),
        watched_pace() as watch,
    ):
        port = int(base_url.rpartition(":")[2])
        asyncio.run(measure(port, psutil.Process(process_id), watch, steady_only=steady_only))


if __name__ == "__main__":
    main()
