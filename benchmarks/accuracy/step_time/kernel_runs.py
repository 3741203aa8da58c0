"""Runs timed with some kernels and, but for those, alike without: what fusing operations saves, planned and measured.

They are fms-acceleration's runs of transformers under accelerate, whose memory is among the memory cases. No time was
fitted to them.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.peak_memory.cases import DATA, memory_cases
from benchmarks.accuracy.step_time.statistics import errors
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.training.planning import plan_without_advice

SOURCE = "foundation-model-stack/fms-acceleration"
UNIT = "train_tokens_per_second"  # of one GPU
MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """One timed run: microseconds a token of a GPU, measured and planned."""

    question: TrainingQuestion
    frozen_format: str
    measured: float
    estimated: float
    low: float
    high: float


def kernel_sections() -> Iterator[Section]:
    """Plan every timed run and yield the errors by kernels, and the pairs."""
    runs = list(_runs())
    yield Section(
        name="time-kernels",
        title="Step time, fms-acceleration's runs of accelerate on A100s (fitted to none of them)",
        lines=(*_by_kernels(runs), "", *_pairs(runs)),
    )


def _runs() -> Iterator[KernelRun]:
    questions = {case.case_id: case.question for case in memory_cases().cases if SOURCE in case.source}
    with (DATA / "train_memory.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["throughput"] and row["throughput_unit"] == UNIT]
    for row in rows:
        question = questions.get(row["case_id"])
        if question is None:
            continue
        try:
            step = plan_without_advice(question).plan.step
        except PlimsollError:
            continue
        tokens = question.global_batch_size * question.sequence_length / question.hardware.gpus.minimum / MICROSECONDS
        yield KernelRun(
            question=question,
            frozen_format=row["base_quant"],
            measured=MICROSECONDS / float(row["throughput"]),
            estimated=step.seconds / tokens,
            low=step.low_seconds / tokens,
            high=step.high_seconds / tokens,
        )


def _by_kernels(runs: list[KernelRun]) -> Iterator[str]:
    yield f"{'method, kernels':28}  runs  mean  med.   bias cover"
    groups: dict[str, list[KernelRun]] = {}
    for run in runs:
        groups.setdefault(f"{run.question.method}, {run.question.kernels}", []).append(run)
    for name, some in sorted(groups.items()):
        measured, estimated, low, high = (
            np.array([getattr(run, key) for run in some]) for key in ("measured", "estimated", "low", "high")
        )
        got = errors(estimated, measured, low / estimated, high / estimated)
        yield (
            f"{name:28}{got.cases:6d} {100 * got.mean:4.0f}% {100 * got.median:4.0f}% {100 * got.bias:+4.0f}%"
            f" {100 * got.coverage:4.0f}%"
        )


def _pairs(runs: list[KernelRun]) -> Iterator[str]:
    yield f"{'pairs that differ in kernels alone':38} eager  foak  saved, us a token: measured, estimated"
    eager = {_job(run): run for run in runs if run.question.kernels == "eager"}
    for run in runs:
        plain = eager.get(_job(run))
        if run.question.kernels != "foak" or plain is None or run.question.fused_cross_entropy:
            continue
        asked = run.question
        method = f"{asked.method} {run.frozen_format[:4]}".strip()
        name = f"{asked.model.name[:12]} {method}, {asked.hardware.gpus.minimum} x {asked.micro_batch_size}"
        yield (
            f"{name:38}{plain.measured:6.0f}{run.measured:6.0f}"
            f"{plain.measured - run.measured:31.0f}{plain.estimated - run.estimated:11.0f}"
        )


def _job(run: KernelRun) -> tuple[object, ...]:
    """Return what two runs that differ in their kernels only have in common."""
    asked = dataclasses.replace(run.question, kernels=None)
    job = (asked.model.name, asked.method, run.frozen_format, asked.precision, asked.recompute)
    return (*job, asked.sequence_length, asked.global_batch_size, asked.micro_batch_size, asked.layout)
