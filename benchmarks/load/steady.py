"""A load below what the server carries: at a part of the rate that was measured right before it, in rounds.

Each round measures the most anew, for a processor's own pace may be another one a minute later (`pace`): a part of what
one minute could carry may be more than the next one can.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import psutil

from benchmarks.load.driver import Load, MakeRequest, closed_loop, open_loop, part_within
from benchmarks.load.pace import PaceWatch

CONNECTIONS = 8
CAPACITY_SECONDS = 3.0
SECONDS = 8.0
FRACTION = 0.8

HEADER = (
    "| request | at most, requests/s | asked, requests/s | p50, ms | p99, ms | refused | server, of one core "
    "| sender late, p99, ms | processor's pace then, now |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the server carried at most, what it was asked then, and its processor time for that."""

    most: Load
    asked_per_second: float
    load: Load
    processor_seconds: float

    def row(self, name: str, watch: PaceWatch) -> str:
        """Return the round as a row of the table."""
        paces = watch.read()
        p50, p99 = (1000 * part_within(self.load.latencies, fraction) for fraction in (0.5, 0.99))
        then, now = (paces.share(load.began, load.ended) for load in (self.most, self.load))
        return (
            f"| {name} | {self.most.requests_per_second:.0f} | {self.asked_per_second:.0f} | {p50:.1f} | {p99:.1f} "
            f"| {self.load.refused} | {self.processor_seconds / self.load.seconds:.2f} "
            f"| {1000 * part_within(self.load.lags, 0.99):.1f} | {then:.2f}, {now:.2f} |"
        )

    @property
    def p99_ms(self) -> float:
        """Return the time that 99 % of the answers stayed within."""
        return 1000 * part_within(self.load.latencies, 0.99)


async def steady_round(port: int, request: MakeRequest, server: psutil.Process) -> Round:
    """Measure the most that the server carries, then ask at a part of it."""
    most = await closed_loop(port, request, connections=CONNECTIONS, seconds=CAPACITY_SECONDS)
    rate = FRACTION * most.requests_per_second
    before = processor_seconds(server)
    load = await open_loop(port, request, requests_per_second=rate, seconds=SECONDS)
    return Round(most=most, asked_per_second=rate, load=load, processor_seconds=processor_seconds(server) - before)


def summary(name: str, rounds: list[Round]) -> str:
    """Return what all rounds of one kind of request say."""
    p99s = sorted(each.p99_ms for each in rounds)
    asked = sum(each.load.requests + each.load.refused for each in rounds)
    refused = sum(each.load.refused for each in rounds)
    return (
        f"{name}: the 99th percentile of {len(rounds)} rounds is {median(p99s):.0f} ms in the median, {p99s[0]:.0f} to "
        f"{p99s[-1]:.0f}; {refused} of {asked} refused."
    )


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor time that a process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)
