"""Which layout is best: the objective first, the simpler of near equals, never chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planners.layout.candidates import NONE, Candidates, FloatArray
from planners.questions import TrainingQuestion

# Differences below this are within the time model's error, so the simpler layout wins.
NEAR_EQUAL_FRACTION = 0.01
MOST_ALTERNATIVES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Evaluated layouts of all frameworks, side by side."""

    layouts: Candidates
    peaks: FloatArray
    verdicts: FloatArray
    seconds: FloatArray


def run_steps(question: TrainingQuestion) -> int | None:
    """Return the optimizer steps of the token budget, or None without one."""
    if question.tokens is None:
        return None
    return math.ceil(question.tokens / (question.global_batch_size * question.sequence_length))


def best_index(ranked: Ranked, question: TrainingQuestion) -> int:
    """Return the index of the best layout among those that fit.

    For the fewest GPUs any layout that fits counts; otherwise one that fits with
    room goes before one that is tight.
    """
    gpus = ranked.layouts.gpus.astype(np.float64)
    fitting = ranked.verdicts > 0
    objective = ranked.seconds
    steps = run_steps(question)
    is_late = np.zeros(len(ranked.layouts))
    by_gpus = question.objective == "fewest_gpus" or question.hardware.gpus.is_free
    if question.objective == "deadline" and steps is not None and question.deadline_seconds is not None:
        is_late = (ranked.seconds * steps > question.deadline_seconds).astype(np.float64)
        by_gpus = not is_late[fitting].all()
    elif question.objective == "cost":
        objective = ranked.seconds * gpus
    chosen = fitting & (is_late == is_late[fitting].min())
    if by_gpus:
        chosen &= gpus == gpus[chosen].min()
    chosen &= ranked.verdicts == ranked.verdicts[chosen].max()
    near = np.flatnonzero(chosen & (objective <= objective[chosen].min() * (1 + NEAR_EQUAL_FRACTION)))
    order = np.lexsort((near, ranked.peaks[near], objective[near], complexity(ranked.layouts.take(near))))
    return int(near[order[0]])


def closest_index(ranked: Ranked) -> int:
    """Return the layout that needs the least memory, the simpler of equals."""
    near = np.flatnonzero(ranked.peaks <= ranked.peaks.min())
    order = np.lexsort((near, complexity(ranked.layouts.take(near))))
    return int(near[order[0]])


def complexity(layouts: Candidates) -> FloatArray:
    """Return how many moving parts a layout has: one for each kind of parallelism and each trick."""
    parts = (
        layouts.pipeline_parallel > 1,
        layouts.virtual_pipeline > 1,
        layouts.context_parallel > 1,
        layouts.tensor_parallel > 1,
        layouts.expert_parallel > 1,
        layouts.sequence_parallel,
        layouts.shard_group != layouts.data_parallel,
        layouts.offload > 0,
        layouts.offload > 0,
        layouts.recompute != NONE,
        layouts.fused_cross_entropy,
        (layouts.zero_stage > 0) & (layouts.data_parallel == 1),
    )
    count: FloatArray = np.sum(np.stack([part.astype(np.float64) for part in parts]), axis=0)
    return count


def pareto_front(ranked: Ranked) -> list[int]:
    """Return layouts that no other beats in GPUs, step time and margin at once, fastest first.

    A longer front is thinned evenly; its ends stay.
    """
    fitting = np.flatnonzero(ranked.verdicts > 0)
    gpus = ranked.layouts.gpus[fitting]
    simple = complexity(ranked.layouts.take(fitting))
    order = fitting[np.lexsort((fitting, simple, ranked.peaks[fitting], ranked.seconds[fitting], gpus))]
    front: list[int] = []
    kept: list[tuple[float, float]] = []
    for count in np.unique(gpus).tolist():
        same = order[ranked.layouts.gpus[order] == count]
        # Along rising time only a new least peak can be unbeaten.
        peaks = ranked.peaks[same]
        before = np.concatenate([[math.inf], np.minimum.accumulate(peaks)[:-1]])
        for index in same[peaks < before].tolist():
            point = (float(ranked.seconds[index]), float(ranked.peaks[index]))
            if not any(seconds <= point[0] and peak <= point[1] for seconds, peak in kept):
                kept.append(point)
                front.append(index)
    front.sort(key=lambda index: (float(ranked.seconds[index]), float(ranked.peaks[index]), index))
    if len(front) <= MOST_ALTERNATIVES:
        return front
    places = np.linspace(0, len(front) - 1, MOST_ALTERNATIVES).round().astype(int)
    return [front[place] for place in places.tolist()]
