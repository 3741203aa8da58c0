"""The nearest numbers of GPUs and the nearest batches on which a refused job can run.

Rules alone decide what is tried, before any memory; what is offered was planned, and fits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.pipeline_layouts import LISTED, read_pipeline_layout
from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.plans import Alternative
from plimsoll.planners.questions import Recompute, TrainingQuestion
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.gpu_counts import gpu_counts
from plimsoll.planners.search.rules.every import RULES, RULES_OF_BATCHES, obey
from plimsoll.planners.search.rules.fields import DEGREES_OF_GPUS
from plimsoll.planners.search.rules.rule import Rule

JobsOf = Callable[[TrainingQuestion], Sequence[Job]]
BestOf = Callable[[TrainingQuestion], Alternative]

# Numbers of GPUs that are looked at on each side of what was asked for, so many at once.
MOST_COUNTS = 64
COUNTS_AT_ONCE = 8
# Of what rules allow on each side so many are planned: 960 GPUs in 15 stages are faster than 992 in 31.
MOST_PLANNED = 3
RULES_BUT_OF_BATCHES = tuple(rule for rule in RULES if rule not in RULES_OF_BATCHES)


def way_out(question: TrainingQuestion, jobs_of: JobsOf, best: BestOf) -> str:
    """Return a sentence that names the nearest GPU counts and batches that work; empty where none is near.

    `best` returns the layout that a question's plan would have.
    """
    jobs = jobs_of(question)
    ways = {
        "gpus": _best_near(question, _other_counts(question, jobs), functools.partial(_on, question), best),
        "global_batch_size": _best_near(
            question,
            _other_batches(question, jobs),
            lambda batch: replace(question, global_batch_size=batch),
            best,
        ),
    }
    named = [f"{field} to {' or '.join(map(str, sorted(found)))}" for field, found in ways.items() if found]
    is_one = sum(map(len, ways.values())) == 1
    return f"Set {', or '.join(named)}: {'this was' if is_one else 'each was'} planned, and fits." if named else ""


def has_layout(question: TrainingQuestion, job: Job) -> bool:
    """Return whether some layout of a job obeys every rule on the GPUs that are asked for."""
    return any(_allowed(question, job, gpus, RULES, "gpus").size for gpus in gpu_counts(question))


def _best_near(
    question: TrainingQuestion,
    sides: Iterable[Iterator[int]],
    changed: Callable[[int], TrainingQuestion],
    best: BestOf,
) -> list[int]:
    """Return of each side's nearest values the one whose plan fits and is the fastest for what it costs more."""
    asked_gpus = question.hardware.gpus.maximum
    found: list[int] = []
    for side in sides:
        costs = {value: _cost(changed(value), asked_gpus, best) for value in itertools.islice(side, MOST_PLANNED)}
        if min(costs.values(), default=math.inf) < math.inf:
            found.append(min(costs, key=lambda value: costs[value]))
    return found


def _cost(question: TrainingQuestion, asked_gpus: int, best: BestOf) -> float:
    """Return the GPU seconds of one sequence, GPUs that are there but idle counted in; infinite where nothing fits."""
    try:
        plan = best(question)
    except PlanningStopped:
        raise
    except PlimsollError:
        # What is no rule of layouts refuses it too, so that it is no way out.
        return math.inf
    gpus = max(plan.layout.gpus, asked_gpus)
    return math.inf if plan.verdict == "no" else plan.step_seconds * gpus / question.global_batch_size


def _on(question: TrainingQuestion, gpus: int) -> TrainingQuestion:
    return replace(question, hardware=replace(question.hardware, gpus=GpuCount(minimum=gpus, maximum=gpus)))


def _other_counts(question: TrainingQuestion, jobs: Sequence[Job]) -> tuple[Iterator[int], Iterator[int]]:
    """Return the GPU counts below and above those asked for on which layouts exist, the nearest first."""
    count, request = question.hardware.gpus, question.layout
    degrees = [getattr(request, field) for field in DEGREES_OF_GPUS if getattr(request, field) is not None]
    node = question.hardware.gpus_per_node
    step = math.prod(degrees) if degrees else node if count.minimum > node else 1
    if count.is_free:
        return iter(()), iter(())
    below = range((count.minimum - 1) // step * step, 0, -step)[:MOST_COUNTS]
    above = range((count.maximum // step + 1) * step, (count.maximum // step + 1 + MOST_COUNTS) * step, step)
    return _possible(question, jobs, below), _possible(question, jobs, above)


def _possible(question: TrainingQuestion, jobs: Sequence[Job], counts: Sequence[int]) -> Iterator[int]:
    """Yield the GPU counts, in their order, on which some layout obeys every rule."""
    for start in range(0, len(counts), COUNTS_AT_ONCE):
        some = counts[start : start + COUNTS_AT_ONCE]
        allowed = {count for job in jobs for count in _allowed(question, job, np.array(some), RULES, "gpus").tolist()}
        yield from (count for count in some if count in allowed)


def _other_batches(question: TrainingQuestion, jobs: Sequence[Job]) -> tuple[Iterator[int], Iterator[int]]:
    """Return the batches below and above the one asked for that replicas divide, the nearest first."""
    count, batch = question.hardware.gpus, question.global_batch_size
    if count.minimum != count.maximum:
        return iter(()), iter(())
    gpus, size = np.array([count.minimum]), question.micro_batch_size or 1
    replicas = {
        degree * size
        for job in jobs
        for degree in _allowed(question, job, gpus, RULES_BUT_OF_BATCHES, "data_parallel").tolist()
    }
    multiples = {
        multiple for at_once in replicas for multiple in (batch // at_once * at_once, at_once * -(-batch // at_once))
    }
    below = sorted((multiple for multiple in multiples if 0 < multiple < batch), reverse=True)
    above = sorted(multiple for multiple in multiples if multiple > batch)
    return iter(below), iter(above)


def _allowed(question: TrainingQuestion, job: Job, gpus: IntArray, rules: Sequence[Rule], column: str) -> IntArray:
    """Return what the layouts that obey the rules have in a column of the mesh.

    What is open beside the mesh is as it hinders least: whatever obeys the rules with another choice does with these.
    """
    asked = question.layout
    is_listed = asked.pipeline_layout is not None and read_pipeline_layout(asked.pipeline_layout).form == LISTED
    # A list says how many stages there are, of each rank one or several.
    virtual = asked.virtual_pipeline or (None if is_listed else 1)
    plain = replace(
        question,
        layout=replace(asked, virtual_pipeline=virtual),
        micro_batch_size=question.micro_batch_size or 1,
        recompute=question.recompute or Recompute(mode="none"),
        fused_cross_entropy=bool(question.fused_cross_entropy),
    )
    grid = candidate_grid(plain, job, gpus)
    if not grid.bases or not all(grid.shape):
        return np.zeros(0, dtype=np.int64)
    obeyed = obey(grid.layouts, job, grid.distinct, rules).allowed.any(axis=(0, 1, 2))
    values: IntArray = np.unique(np.broadcast_to(getattr(grid.layouts, column), grid.shape)[0, 0, 0][obeyed])
    return values
