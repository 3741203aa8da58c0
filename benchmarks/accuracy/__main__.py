"""Compare the planners with the public measurements.

    python -m benchmarks.accuracy memory [--cases STACK | --write-cases]

Rows are asked about through the planners' own front door with the layout fixed;
constants were fitted to the part named "fitted" only (`held_out.py`).
"""

from __future__ import annotations

import argparse
import time

from benchmarks.accuracy.measured_cases_file import MEASURED_CASES, write_measured_cases
from benchmarks.accuracy.memory_cases import memory_cases
from benchmarks.accuracy.memory_predictions import memory_predictions
from benchmarks.accuracy.memory_report import case_lines, confusion_table, point_table


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("subject", choices=["memory"])
    parser.add_argument(
        "--write-cases", action="store_true", help="write the measured cases that plans name as nearest"
    )
    parser.add_argument("--cases", metavar="STACK", help="list every case of one stack, worst first")
    arguments = parser.parse_args()
    _memory(arguments.cases, write_cases=arguments.write_cases)


def _memory(stack: str | None, *, write_cases: bool) -> None:
    started = time.perf_counter()
    cases = memory_cases()
    predictions, refused = memory_predictions(cases)
    if write_cases:
        print(f"{write_measured_cases(predictions)} cases written to {MEASURED_CASES}")
        return
    if stack is not None:
        print("\n".join(case_lines(predictions, stack)))
        return
    print("Peak memory, by stack\n")
    print("\n".join(point_table(predictions, lambda one: one.case.stack)))
    print("\nPeak memory, by source\n")
    print("\n".join(point_table(predictions, lambda one: f"{one.case.kind} {one.case.source}")))
    print("\nFits, against what happened (nanotron's failures are not all of memory)\n")
    print("\n".join(confusion_table(predictions)))
    print("\nNot asked, and refused by the planner\n")
    for (name, reason), count in sorted((cases.left_out + refused).items()):
        print(f"{count:5} {name}: {reason}")
    print(f"\n{len(predictions)} answers in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
