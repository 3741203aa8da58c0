"""Print how far the planner's step times lie from published measurements."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.accuracy_time.cases import all_cases
from benchmarks.accuracy_time.estimates import estimated_seconds, grouped, planned_seconds
from benchmarks.accuracy_time.report import print_report
from planners.timing.efficiency import load_efficiency


def main() -> None:
    """Ask the planner for every case and print the tables."""
    began = time.perf_counter()
    cases, left_out = all_cases()
    estimated = estimated_seconds(grouped(cases), len(cases), planned_seconds)
    ranges = [
        load_efficiency(case.framework, case.gpu).band(experts=bool(case.model.experts_per_token)) for case in cases
    ]
    low, high = np.array(ranges).T
    print_report(cases, estimated, low, high, left_out)
    print(f"\n{len(cases)} cases in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
