"""The planner's own answer for every case: cases of one job are asked together, as the search asks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.step_time.cases import Case
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray, candidates_from_rows
from plimsoll.planners.questions import Recompute, TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.stalls import stall_seconds
from plimsoll.planners.timing.step import step_seconds

Seconds = Callable[[Candidates, Job, Hardware], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cases that differ in their layouts only; `owner` is the case of each layout."""

    job: Job
    hardware: Hardware
    layouts: Candidates
    owner: IntArray


def grouped(cases: Sequence[Case]) -> list[Group]:
    """Return the cases as groups, every open choice of a case as a layout of its own."""
    together: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        key = (
            (case.framework, case.gpu, case.hardware.gpu.nic_bytes_per_second, case.hardware.gpus.minimum),
            (
                case.model.num_layers,
                case.model.hidden_size,
                case.model.parameters,
                case.precision,
                case.attention,
                case.kernels,
            ),
            (case.sequence_length, case.global_batch_size),
        )
        together.setdefault(key, []).append(index)
    return [_group(cases, indices) for indices in together.values()]


def estimated_seconds(groups: Sequence[Group], count: int, seconds: Seconds) -> FloatArray:
    """Return the estimate of each of `count` cases, the best of its open choices."""
    best = np.full(count, np.inf)
    for group in groups:
        taken = seconds(group.layouts, group.job, group.hardware)
        np.minimum.at(best, group.owner, taken)
    return best


def _group(cases: Sequence[Case], indices: Sequence[int]) -> Group:
    first = cases[indices[0]]
    rows: list[dict[str, int | bool]] = []
    owner: list[int] = []
    for index in indices:
        choices = cases[index].layout
        for values in itertools.product(*choices.values()):
            rows.append(dict(zip(choices, values, strict=True)))
            owner.append(index)
    question = TrainingQuestion(
        model=first.model,
        hardware=first.hardware,
        precision=first.precision,
        sequence_length=first.sequence_length,
        global_batch_size=first.global_batch_size,
        attention=first.attention,
        kernels=first.kernels,
        recompute=Recompute(mode="none"),
    )
    return Group(
        job=training_job(question, load_profile(first.framework)),
        hardware=first.hardware,
        layouts=candidates_from_rows(rows),
        owner=np.array(owner),
    )


def planned_seconds(layouts: Candidates, job: Job, hardware: Hardware) -> FloatArray:
    """Return the planner's answer with the efficiencies it ships."""
    efficiency = load_efficiency(job.profile.name, hardware.gpu.id)
    return step_seconds(layouts, job, hardware, efficiency).total


def stalls(layouts: Candidates, job: Job, hardware: Hardware) -> FloatArray:
    """Return how much longer a step may take in the stack's slow mode."""
    return stall_seconds(layouts, job, load_efficiency(job.profile.name, hardware.gpu.id))
