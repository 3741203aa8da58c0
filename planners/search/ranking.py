"""Which layout is best: the objective first, the simpler of near equals, never chance."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from plimsoll.planners.layouts.candidates import NONE, BoolArray, Candidates, FloatArray, IntArray, once
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory.peak import FITS, TIGHT, UNSURE
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.objectives import latest_step_seconds, objective_of, wants_fewest_gpus

# Of pairs of measured layouts whose estimates differ by less, as many went one way as the other, so the simpler layout
# wins. What is further apart and still equal within the band (`planners/timing/ties.py`) is told, and not chosen
# otherwise: the simplest or the roomiest of those was slower on measured jobs than the fastest by the estimate
# (docs/accuracy.md, "Ranking").
NEAR_EQUAL_FRACTION = 0.01
MOST_ALTERNATIVES = 12
# Peaks that differ by less are within the error band of every stack (`planners/stacks`).
CLOSE_FRACTION = 0.05
# More than all moving parts that a layout has besides: near equals that keep everything on the device go first.
PARTS_OF_OFFLOAD = 32
# More than products of a step's seconds and a number of GPUs are rounded by.
ROUNDING_FRACTION = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Evaluated layouts of all frameworks, side by side; `excess` is how many times what is there they need."""

    gpus: IntArray
    offload: IntArray
    activation_offload: BoolArray
    complexity: FloatArray
    peaks: FloatArray
    excess: FloatArray
    verdicts: FloatArray
    seconds: FloatArray


def best_index(ranked: Ranked, question: TrainingQuestion) -> int:
    """Return the index of the best layout among those that fit."""
    return best_and_fastest(ranked, question)[0]


def best_and_fastest(ranked: Ranked, question: TrainingQuestion) -> tuple[int, float]:
    """Return the index of the best layout among those that fit, and the objective of the fastest that could be it.

    What is sure to have the host memory goes before what may lack it. For the fewest
    GPUs any other layout that fits counts; otherwise one that fits with room goes
    before one that is tight.
    """
    gpus = ranked.gpus
    fitting = ranked.verdicts > 0
    objective = objective_of(question, gpus, ranked.seconds)
    is_late = (ranked.seconds > latest_step_seconds(question)).astype(np.float64)
    # Where no layout is in time, the fastest comes nearest.
    by_gpus = wants_fewest_gpus(question) and not is_late[fitting].all()
    chosen = fitting & (is_late == is_late[fitting].min())
    is_sure = chosen & (ranked.verdicts >= TIGHT)
    chosen = is_sure if is_sure.any() else chosen
    if by_gpus:
        chosen &= gpus == gpus[chosen].min()
    chosen &= _preferred(ranked, chosen, objective, question)
    near = np.flatnonzero(chosen & (objective <= objective[chosen].min() * (1 + NEAR_EQUAL_FRACTION)))
    simple = parts_that_count(ranked.complexity[near], question)
    order = np.lexsort((near, ranked.peaks[near], objective[near], simple))
    return int(near[order[0]]), float(objective[chosen].min())


def parts_that_count(complexity: FloatArray, question: TrainingQuestion) -> FloatArray:
    """Return the moving parts that near equals are told apart by.

    Offload that nobody asked for is chosen for its time alone: of near equals with as much on the host, states or
    activations or both, the fastest goes first, so that no answer is slower than that to the same question without
    offload of states, or of activations.
    """
    asks = question.layout.offload not in (None, "none") or bool(question.activation_offload)
    moved = complexity - complexity % PARTS_OF_OFFLOAD
    return complexity if asks else np.where(moved > 0, moved, complexity)


def _preferred(ranked: Ranked, chosen: BoolArray, objective: FloatArray, question: TrainingQuestion) -> BoolArray:
    """Return which verdict goes first among the chosen: room before speed, but room is not bought with offload.

    Where only offload leaves room, tight layouts go first if one that keeps states and activations on the device is
    faster. Activations that were asked to go to the host are no reason against a layout.
    """
    on_device = (ranked.offload == 0) & (~ranked.activation_offload | bool(question.activation_offload))
    has_room: BoolArray = chosen & (ranked.verdicts == FITS)
    tight: BoolArray = chosen & (ranked.verdicts < FITS)
    tight_on_device: BoolArray = tight & on_device
    if not has_room.any():
        return tight
    if (has_room & on_device).any() or not tight_on_device.any():
        return has_room
    return tight if objective[tight_on_device].min() < objective[has_room].min() else has_room


def contenders(
    gpus: IntArray, peaks: FloatArray, verdicts: FloatArray, seconds: FloatArray, offloaded: IntArray
) -> IntArray:
    """Return the indices of fitting layouts that can still be the best or stand on the front, whatever joins them.

    Of each GPU count those are the near equals of the fastest of each verdict and of each kind of offload
    (`kind_of_offload`), and what no faster layout undercuts in memory.
    """
    kept = np.zeros(gpus.size, dtype=bool)
    for count in distinct(gpus)[0].tolist():
        here = np.flatnonzero(gpus == count)
        order = here[np.argsort(seconds[here])]
        kept[order] = peaks[order] <= np.minimum.accumulate(peaks[order])
        for verdict, kind in product((UNSURE, TIGHT, FITS), distinct(offloaded)[0].tolist()):
            judged = here[(verdicts[here] == verdict) & (offloaded[here] == kind)]
            if not judged.size:
                continue
            near = seconds[judged] <= seconds[judged].min() * (1 + NEAR_EQUAL_FRACTION + ROUNDING_FRACTION)
            kept[judged[near]] = True
    return np.flatnonzero(kept)


def kind_of_offload(layouts: Candidates) -> IntArray:
    """Return a number for what goes to the host: neither states nor activations, one of them, or both."""
    result: IntArray = (layouts.offload > 0) + 2 * layouts.activation_offload
    return result


def closest_index(ranked: Ranked, is_measured: BoolArray) -> int:
    """Return the layout to try first of those that need next to the least memory: measured, simple, least, in turn."""
    near = np.flatnonzero(ranked.excess <= ranked.excess.min() * (1 + CLOSE_FRACTION))
    order = np.lexsort((near, ranked.excess[near], ranked.complexity[near], ~is_measured[near]))
    return int(near[order[0]])


def closest(layouts: Candidates, excess: FloatArray) -> IntArray:
    """Return the indices of the layouts that can still be the closest: the least, and the simplest beside it."""
    near = np.flatnonzero(excess <= excess.min() * (1 + CLOSE_FRACTION))
    order = np.lexsort((near, excess[near], complexity(layouts.take(near))))
    return np.unique([near[order[0]], near[np.argmin(excess[near])]])


@once
def complexity(layouts: Candidates) -> FloatArray:
    """Return how many moving parts a layout has: one for each kind of parallelism and each trick, most for offload."""
    moved = (layouts.offload > 0).astype(np.float64) + layouts.activation_offload
    return PARTS_OF_OFFLOAD * moved + _count(
        layouts.pipeline_parallel > 1,
        layouts.virtual_pipeline > 1,
        # The stack's own way to divide a pipeline stands first.
        layouts.pipeline_layout > 0,
        layouts.context_parallel > 1,
        layouts.context_all_to_all > 1,
        layouts.tensor_parallel > 1,
        layouts.expert_parallel > 1,
        layouts.expert_overlap,
        layouts.sequence_parallel,
        layouts.shard_group != layouts.data_parallel,
        layouts.secondary_shard_group > 1,
        layouts.offload > 0,
        layouts.offload > 0,
        layouts.activation_offload,
        layouts.activation_offload,
        layouts.recompute != NONE,
        layouts.fused_cross_entropy,
        (layouts.zero_stage > 0) & (layouts.data_parallel == 1),
    )


# Axes that bases have once they are divided into stages, and what of each is no moving part.
LATER_AXES = (
    ("context_all_to_all", 1),
    ("virtual_pipeline", 1),
    ("pipeline_layout", 0),
    ("expert_overlap", 0),
    ("secondary_shard_group", 1),
)


def least_complexity(bases: Mapping[str, IntArray]) -> FloatArray:
    """Return how many moving parts all layouts have at the least that are made of a mesh, of its own shard group."""
    return _count(
        *(bases[name] > 1 for name in ("pipeline_parallel", "context_parallel", "tensor_parallel", "expert_parallel")),
        bases["sequence_parallel"] > 0,
        *(bases[name] > least for name, least in LATER_AXES if name in bases),
        *([bases["shard_group"] != bases["data_parallel"]] if "shard_group" in bases else []),
    )


def _count(*parts: BoolArray) -> FloatArray:
    """Return how many of these hold of each; whole numbers of one width are added several times faster than of two."""
    return functools.reduce(operator.add, (part.view(np.uint8) for part in parts)).astype(np.float64)


def pareto_front(ranked: Ranked) -> list[int]:
    """Return layouts that no other beats in GPUs, step time and margin at once, fastest first.

    A longer front is thinned evenly; its ends stay.
    """
    fitting = np.flatnonzero(ranked.verdicts > 0)
    gpus = ranked.gpus[fitting]
    simple = ranked.complexity[fitting]
    order = fitting[np.lexsort((fitting, simple, ranked.peaks[fitting], ranked.seconds[fitting], gpus))]
    front: list[int] = []
    kept: list[tuple[float, float]] = []
    for count in distinct(gpus)[0].tolist():
        same = order[ranked.gpus[order] == count]
        fewer = tuple(kept)
        # Along rising time only a new least peak can be unbeaten.
        peaks = ranked.peaks[same]
        before = np.concatenate([[math.inf], np.minimum.accumulate(peaks)[:-1]])
        for index in same[peaks < before].tolist():
            point = (float(ranked.seconds[index]), float(ranked.peaks[index]))
            if not any(seconds <= point[0] and peak <= point[1] for seconds, peak in fewer):
                kept.append(point)
                front.append(index)
    front.sort(key=lambda index: (float(ranked.seconds[index]), float(ranked.peaks[index]), index))
    if len(front) <= MOST_ALTERNATIVES:
        return front
    places = np.linspace(0, len(front) - 1, MOST_ALTERNATIVES).round().astype(int)
    return [front[place] for place in places.tolist()]
