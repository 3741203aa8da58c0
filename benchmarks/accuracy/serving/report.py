"""The serving planner against public start-up logs and latencies, as tables.

Latencies are shown twice: with the planner's own weights, and with weights fitted
without the row's model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.serving.fit import Floats, Problem, first_token_problem, token_problem
from benchmarks.accuracy.serving.latencies import LatencyCase, latency_cases
from benchmarks.accuracy.serving.startup_logs import log_cases, log_lines
from planners.serving.pace import pace_of


def serving_sections() -> Iterator[Section]:
    """Ask the planner for every case and yield the tables."""
    lines = tuple(log_lines(log_cases()))
    yield Section(name="serving-memory", title="Serving memory and cache, planned over logged", lines=lines)
    cases, left_out = latency_cases()
    timed = [case for case in cases if case.first_token_seconds]
    tokens = tuple(_table(token_problem(cases), np.array([token_seconds(case) for case in cases])))
    yield Section(
        name="serving-token", title="Serving, time per output token, mean (median) relative error", lines=tokens
    )
    first = tuple(_table(first_token_problem(timed), np.array([first_token_seconds(case) for case in timed])))
    yield Section(
        name="serving-first-token", title="Serving, time to first token, mean (median) relative error", lines=first
    )
    reasons = tuple(f"{count:6d}  {reason}" for reason, count in sorted(left_out.items()))
    yield Section(name="serving-left-out", title="Serving, rows that are no case", lines=reasons)


def token_seconds(case: LatencyCase) -> float:
    """Return the planner's time between tokens."""
    return pace_of(case.work, case.traffic).token_seconds(case.batch)


def first_token_seconds(case: LatencyCase) -> float:
    """Return the planner's time to the first token."""
    return pace_of(case.work, case.traffic).first_token_seconds(case.batch)


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
