"""Print the search's rates and the latency of `POST /plan/train`, with date and machine."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.search.cases import CASES, HTTP_CASES, WIDE_CASES, Case
from benchmarks.search.latency import latencies
from benchmarks.search.rates import search_rate
from plimsoll.service.observability.logging import configure_logging

REPETITIONS = 7
HTTP_REPETITIONS = 15


def main() -> None:
    """Time every case and print the tables as Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repetitions", type=int, default=REPETITIONS)
    options.add_argument("--without-http", action="store_true")
    chosen = options.parse_args()
    # Else each plan that is made is told between the rows.
    configure_logging("warning")
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {_machine()}\n")
    print_rates((*CASES, *WIDE_CASES), chosen.repetitions)
    if not chosen.without_http:
        print()
        print_latencies(HTTP_CASES)


def print_rates(cases: Sequence[Case], repetitions: int) -> None:
    """Print one row a search, the rates per second of one core."""
    print("| search | layouts | fit | wall, ms | processor, ms | layouts/s, median | layouts/s, fastest | memory, MB |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for case in cases:
        rate = search_rate(case, repetitions)
        if rate is None:
            print(f"| {case.name} | 0 | | | | | | |")
            continue
        print(
            f"| {case.name} | {rate.layouts:,} | {rate.fitting:,} | {rate.wall_seconds * 1e3:.1f} "
            f"| {rate.cpu_seconds * 1e3:.1f} | {rate.layouts / rate.cpu_seconds:,.0f} "
            f"| {rate.layouts / rate.fastest_seconds:,.0f} | {rate.extra_bytes / 1e6:.0f} |",
            flush=True,
        )


def print_latencies(cases: Sequence[Case]) -> None:
    """Print one row a request."""
    print("| POST /plan/train | median, ms | fastest, ms | of it planning, ms |")
    print("|---|--:|--:|--:|")
    for case, latency in asyncio.run(latencies(cases, HTTP_REPETITIONS)).items():
        print(
            f"| {case.name} | {latency.median_seconds * 1e3:.1f} | {latency.fastest_seconds * 1e3:.1f} "
            f"| {latency.planning_seconds * 1e3:.1f} |"
        )


def _machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    name = models[0].split(":", 1)[1].strip() if models else platform.processor()
    load = os.getloadavg()[0]
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{name}, {os.cpu_count()} cores, load {load:.1f}; {versions}"


if __name__ == "__main__":
    main()
