"""Errors by layout, each row's model held out, and the layouts that no row has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.accuracy.serving.fit import STEP_TERMS, Floats, Problem, first_token_problem, token_problem
from benchmarks.accuracy.serving.latencies import DEPLOYMENT, LatencyCase
from plimsoll.planners.serving.times.efficiency import efficiency

# Each layout by what its rows have; a row is of one alone, and the last have none.
LAYOUTS: tuple[tuple[str, Callable[[dict[str, int]], bool]], ...] = (
    ("one GPU", lambda axes: _others(axes) == 0),
    ("tensor", lambda axes: axes["tp"] > 1 and _others(axes, "tp") == 0),
    ("tensor, whole experts", lambda axes: axes["moe_ep"] > 1 and _others(axes, "tp", "moe_ep") == 0),
    ("attention data", lambda axes: axes["attn_dp"] > 1 and axes["pp"] == 1),
    ("pipeline", lambda axes: axes["pp"] > 1),
    ("decode context", lambda axes: axes.get("dcp", 1) > 1),
    ("several nodes", lambda axes: axes.get("nodes", 1) > 1),
    ("prefill apart", lambda axes: axes.get("prefill", 0) > 0),
)
AXES = ("tp", "pp", "attn_dp", "moe_ep")


def layout_lines(cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield the error and the part within the band of each layout, and which layouts no row has."""
    yield f"{'what':14} {'layout':24} {'rows':>5} {'model held out':>18} {'within band':>12}"
    for name, make in (("token", token_problem), ("first token", first_token_problem)):
        timed = [case for case in cases if name == "token" or case.first_token_seconds]
        problem = make(timed)
        estimates = problem.held_out()
        inside = within_bands(problem, estimates)
        for layout, has in LAYOUTS:
            rows = np.array([has(axes_of(case)) for case in timed])
            if not rows.any():
                yield f"{name:14} {layout:24} {0:5} {'-':>18} {'-':>12}"
                continue
            errors = np.abs(estimates / problem.measured - 1)[rows]
            middle = f"{errors.mean():8.1%} ({np.median(errors):6.1%})"
            yield f"{name:14} {layout:24} {rows.sum():5} {middle} {inside[rows].mean():12.0%}"


def axes_of(case: LatencyCase) -> dict[str, int]:
    """Return the degrees of a case, 1 where its row has none."""
    values = dict(zip(DEPLOYMENT, case.deployment.split("|"), strict=True))
    return {axis: max(1, int(values[axis] or 1)) for axis in AXES}


def within_bands(problem: Problem, estimates: Floats) -> Floats:
    """Return which measured values lie within the shipped band of their engine."""
    ratios = problem.measured / estimates
    shipped = [efficiency(str(engine)) for engine in problem.engines]
    is_step = problem.terms == STEP_TERMS
    bands = [each.token_band if is_step else each.first_token_band for each in shipped]
    return np.array([band.low <= ratio <= band.high for band, ratio in zip(bands, ratios.tolist(), strict=True)])


def _others(axes: dict[str, int], *but: str) -> int:
    """Return how many axes beside those named are divided."""
    return sum(degree > 1 for axis, degree in axes.items() if axis not in but)
