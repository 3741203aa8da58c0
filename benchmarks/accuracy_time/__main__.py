"""Print how far the planner's step times lie from published measurements."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.accuracy_time.cases import all_cases
from benchmarks.accuracy_time.estimates import estimated_seconds, grouped
from benchmarks.accuracy_time.report import print_report
from planners.timing.efficiency import load_efficiency
from planners.timing.step import step_seconds


def main() -> None:
    """Ask the planner for every case and print the tables."""
    began = time.perf_counter()
    cases, left_out = all_cases()
    efficiency = load_efficiency()
    estimated = estimated_seconds(
        grouped(cases),
        len(cases),
        lambda layouts, job, hardware, _: step_seconds(layouts, job, hardware, efficiency).total,
    )
    count = len(cases)
    print_report(cases, estimated, np.full(count, efficiency.low), np.full(count, efficiency.high), left_out)
    print(f"\n{count} cases in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
