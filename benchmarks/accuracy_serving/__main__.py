"""Compare the serving planner with public start-up logs and latencies.

    python -m benchmarks.accuracy_serving

Latencies are printed twice: with the planner's own weights, and with weights fitted
without the row's model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy_serving.fit import Floats, Problem, first_token_problem, token_problem
from benchmarks.accuracy_serving.latencies import LatencyCase, latency_cases
from benchmarks.accuracy_serving.startup_logs import log_cases, log_lines


def main() -> None:
    """Print the tables."""
    started = time.perf_counter()
    print("Memory and cache, planned over printed\n")
    print("\n".join(log_lines(log_cases())))
    cases, left_out = latency_cases()
    timed = [case for case in cases if case.first_token_seconds]
    print("\nTime per output token, mean (median) relative error\n")
    print("\n".join(_table(token_problem(cases), np.array([token_seconds(case) for case in cases]))))
    print("\nTime to first token, mean (median) relative error\n")
    print("\n".join(_table(first_token_problem(timed), np.array([first_token_seconds(case) for case in timed]))))
    print()
    for reason, count in sorted(left_out.items()):
        print(f"{count:4} left out: {reason}")
    print(f"\nin {time.perf_counter() - started:.1f} s")


def token_seconds(case: LatencyCase) -> float:
    """Return the planner's time between tokens."""
    return case.work.token_seconds(case.batch, case.traffic)


def first_token_seconds(case: LatencyCase) -> float:
    """Return the planner's time to the first token."""
    return case.work.first_token_seconds(case.batch, case.traffic)


def _table(problem: Problem, planned: Floats) -> Iterator[str]:
    held_out = problem.held_out()
    yield f"{'engine':8} {'model':20} {'rows':>5} {'planned':>18} {'model held out':>18}"
    for engine in np.unique(problem.engines):
        of_engine = problem.engines == engine
        for family in np.unique(problem.families[of_engine]):
            rows = of_engine & (problem.families == family)
            yield f"{engine:8} {family:20} {rows.sum():5} {_errors(problem, planned, rows)} " + _errors(
                problem, held_out, rows
            )
        yield f"{engine:8} {'all':20} {of_engine.sum():5} {_errors(problem, planned, of_engine)} " + _errors(
            problem, held_out, of_engine
        )


def _errors(problem: Problem, estimates: Floats, rows: np.typing.NDArray[np.bool_]) -> str:
    sizes = np.abs(estimates / problem.measured - 1)[rows]
    return f"{sizes.mean():8.1%} ({np.median(sizes):6.1%})"


if __name__ == "__main__":
    main()
