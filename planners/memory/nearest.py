"""The measured run that is most like a plan, and how far away it is.

`measured_cases.csv` holds one line for each measured configuration, derived from
the public measurements by the accuracy benchmark; `ratio` is the measured peak
over the planner's estimate of it.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from plimsoll.planners.ground.figures import counted, figure, listed
from plimsoll.planners.ground.units import GIGA
from plimsoll.planners.plans import Layout

FILE_NAME = "measured_cases.csv"
COLUMNS = (
    "framework",
    "method",
    "recompute",
    "parameters",
    "gpus",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "tokens",
    "ratio",
)
# A different method or recomputation changes what is held as much as eight times the size does.
OTHER_KIND_DOUBLINGS = 3.0
SIZES_IN_WORDS = {
    "parameters": "parameter",
    "gpus": "GPU",
    "tensor_parallel": "tensor-parallel rank",
    "pipeline_parallel": "pipeline stage",
    "context_parallel": "context-parallel rank",
    "tokens": "token",
}
SIZES = tuple(SIZES_IN_WORDS)
# Below a tenth of a doubling two sizes are called the same.
SAME_DOUBLINGS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured configuration; `tokens` are those of a micro-batch on one replica."""

    framework: str
    method: str
    recompute: str
    sizes: Mapping[str, float]
    ratio: float


@functools.cache
def measured_runs(framework: str) -> tuple[MeasuredRun, ...]:
    """Return the measured runs of one framework."""
    text = (resources.files("plimsoll.planners.memory") / FILE_NAME).read_text(encoding="utf-8")
    return tuple(
        MeasuredRun(
            framework=row["framework"],
            method=row["method"],
            recompute=row["recompute"],
            sizes={name: float(row[name]) for name in SIZES},
            ratio=float(row["ratio"]),
        )
        for row in csv.DictReader(text.splitlines())
        if row["framework"] == framework
    )


def plan_sizes(layout: Layout, *, parameters: int, sequence_length: int) -> dict[str, float]:
    """Return a plan's sizes under the names that measured runs have."""
    return {
        "parameters": float(parameters),
        "gpus": float(layout.gpus),
        "tensor_parallel": float(layout.tensor_parallel),
        "pipeline_parallel": float(layout.pipeline_parallel),
        "context_parallel": float(layout.context_parallel),
        "tokens": float(layout.micro_batch_size * sequence_length),
    }


def nearest_note(layout: Layout, *, method: str, sizes: Mapping[str, float]) -> str | None:
    """Return a sentence that names the nearest measured run and its distance; None where none is on record."""
    runs = measured_runs(layout.framework)
    if not runs:
        return None
    run = min(runs, key=lambda one: _doublings(one, layout, method, sizes))
    differences = [*_kinds_apart(run, layout, method), *_sizes_apart(run, sizes)]
    apart = (
        f"Unlike this plan it had {listed(differences)}." if differences else "It is like this plan in size and method."
    )
    return (
        f"The closest measured run of {layout.framework} ({figure(run.sizes['parameters'] / GIGA)}B parameters on "
        f"{counted(int(run.sizes['gpus']), 'GPU')}, method {run.method}) peaked at {run.ratio:.2f} times the "
        f"estimate. {apart}"
    )


def _doublings(run: MeasuredRun, layout: Layout, method: str, sizes: Mapping[str, float]) -> float:
    """Return the distance of a run: the doublings between the sizes, and a fixed step for each other kind."""
    apart = sum(abs(math.log2(run.sizes[name] / sizes[name])) for name in SIZES)
    return apart + OTHER_KIND_DOUBLINGS * len(_kinds_apart(run, layout, method))


def _kinds_apart(run: MeasuredRun, layout: Layout, method: str) -> list[str]:
    kinds = []
    if run.method != method:
        kinds.append(f"method {run.method}")
    if run.recompute != layout.recompute:
        kinds.append(f"recompute {run.recompute}")
    return kinds


def _sizes_apart(run: MeasuredRun, sizes: Mapping[str, float]) -> list[str]:
    return [
        f"{_measured_size(name, run.sizes[name])} (not {_number(name, sizes[name])})"
        for name in SIZES
        if abs(math.log2(run.sizes[name] / sizes[name])) > SAME_DOUBLINGS
    ]


def _measured_size(name: str, size: float) -> str:
    if name == "parameters":
        return f"{_number(name, size)} parameters"
    return counted(round(size), SIZES_IN_WORDS[name]) + (" per micro-batch" if name == "tokens" else "")


def _number(name: str, size: float) -> str:
    return f"{figure(size / GIGA)}B" if name == "parameters" else f"{round(size):,}"
