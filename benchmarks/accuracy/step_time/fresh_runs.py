"""Runs that no constant was fitted to, asked as a client asks: a whole request with the layout fixed.

A request that is refused counts as refused, and one whose layout does not fit by the plan is timed all the same.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.step_time.statistics import errors
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.plans import TrainingPlan
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.training.planning import plan_without_advice
from plimsoll.service.catalogue.gpus import resolve_hardware
from plimsoll.service.requests.hardware import Fleet
from plimsoll.service.requests.training import TrainRequest

RUNS = Path(__file__).resolve().parents[2] / "data" / "train_step_cases.csv"
KERNELS = "kernels: "  # how a row's note names them
NEARLY_FULL = 0.88
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRun:
    """One run and what was planned for it."""

    row: Row
    measured_seconds: float
    plan: TrainingPlan

    @property
    def kind(self) -> str:
        """Return the stack, mixtures of experts apart."""
        return f"{self.row['framework']}, experts" if self.row["moe"] == "1" else self.row["framework"]

    @property
    def fullness(self) -> float:
        """Return the planned part of the card."""
        return self.plan.memory.peak_bytes / self.plan.memory.limit_bytes


def fresh_sections() -> Iterator[Section]:
    """Ask for every run and yield the tables."""
    with RUNS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    runs, refused = fresh_runs(rows)
    lines = tuple(_by_kind(runs))
    yield Section(name="time-fresh", title=f"Step time, {len(rows)} runs that no fit used", lines=lines)
    reasons = tuple(f"{count:6d}  {reason}" for reason, count in refused.most_common())
    yield Section(name="time-fresh-refused", title="Step time, runs that no fit used: refused", lines=reasons)


def fresh_runs(rows: list[dict[str, str]]) -> tuple[list[FreshRun], Counter[str]]:
    """Return the runs with their plans, and how many were refused, by reason."""
    runs: list[FreshRun] = []
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            plan = plan_without_advice(question_of(row)).plan
        except PlimsollError as problem:
            refused[f"{row['framework']}: {str(problem)[:100]}"] += 1
            continue
        runs.append(FreshRun(row=row, measured_seconds=float(row["measured_step_seconds"]), plan=plan))
    return runs, refused


def question_of(row: Row) -> TrainingQuestion:
    """Return the planner's question of one row."""
    request = TrainRequest.model_validate(request_of(row))
    if isinstance(request.hardware, Fleet):
        raise TypeError("A row names one kind of GPUs.")
    model = (
        json.loads(row["model"])["config"] if row["model"].startswith("{") else catalogue().model(row["model"]).config
    )
    return request.to_question(
        describe_config(model, name=row["model"][:80]), resolve_hardware(request.hardware, catalogue())
    )


def request_of(row: Row) -> dict[str, Any]:
    """Return the body of the row's request."""
    training: dict[str, Any] = {
        "method": row["method"],
        "precision": row["precision"],
        "optimizer": row["optimizer"],
        "sequence_length": int(row["sequence_length"]),
        "global_batch_size": int(row["global_batch_size"]),
        "attention": row["attention"] or "flash",
        **json.loads(row["extra"] or "{}"),
    }
    if row["micro_batch_size"]:
        training["micro_batch_size"] = int(row["micro_batch_size"])
    if row["recompute"]:
        training["recompute"] = row["recompute"]
    if row["note"].startswith(KERNELS):
        training["kernels"] = row["note"].removeprefix(KERNELS)
    hardware: dict[str, Any] = {"gpu": row["gpu"], "gpus": int(row["gpus"])}
    if row["gpus_per_node"]:
        hardware["gpus_per_node"] = int(row["gpus_per_node"])
    if row["nic_bytes_per_second"]:
        hardware["override"] = {"nic_bytes_per_second": float(row["nic_bytes_per_second"])}
    return {
        "model": row["model"] if not row["model"].startswith("{") else json.loads(row["model"]),
        "hardware": hardware,
        "training": training,
        "layout": json.loads(row["layout"] or "{}"),
        "framework": row["framework"],
    }


def _by_kind(runs: list[FreshRun]) -> Iterator[str]:
    yield f"{'stack':28}     n  mean  med.   bias cover"
    groups: dict[str, list[FreshRun]] = {}
    for run in runs:
        groups.setdefault(run.kind, []).append(run)
    nearly_full = [run for run in runs if run.fullness > NEARLY_FULL]
    named = [*sorted(groups.items()), ("all", runs), (f"over {NEARLY_FULL:.0%} full", nearly_full)]
    for name, some in named:
        measured = np.array([run.measured_seconds for run in some])
        estimated, low, high = (
            np.array([getattr(run.plan.step, key) for run in some])
            for key in ("seconds", "low_seconds", "high_seconds")
        )
        got = errors(estimated, measured, low / estimated, high / estimated)
        yield (
            f"{name:28}{got.cases:6d} {100 * got.mean:4.0f}% {100 * got.median:4.0f}% {100 * got.bias:+4.0f}%"
            f" {100 * got.coverage:4.0f}%"
        )
