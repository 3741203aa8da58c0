"""Cases of one job as one list of layouts, as the search has them: for fits, which ask for each thousands of times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.step_time.cases import Case
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.layouts.candidates import Candidates, IntArray, candidates_from_rows
from plimsoll.planners.questions import Recompute, TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile


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
                case.recompute_modules,
            ),
            (case.sequence_length, case.global_batch_size),
        )
        together.setdefault(key, []).append(index)
    return [_group(cases, indices) for indices in together.values()]


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
        recompute=Recompute(mode="selective" if first.recompute_modules else "none", modules=first.recompute_modules),
    )
    return Group(
        job=training_job(question, load_profile(first.framework)),
        hardware=first.hardware,
        layouts=candidates_from_rows(rows),
        owner=np.array(owner),
    )
