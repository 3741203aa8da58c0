"""On which numbers of GPUs layouts are looked for, and in which batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.objectives import wants_fewest_gpus
from plimsoll.planners.search.rules.fields import DEGREES_OF_GPUS

# Of a range every count up to 64 GPUs and 64 nodes; a longer one is thinned to powers of two of nodes or, where the
# fewest are looked for, to so many counts an octave.
MOST_NODE_COUNTS, MOST_COUNTS_IN_FULL = 64, 64
MOST_USUAL_COUNTS = 16
STEPS_AN_OCTAVE = 8


def gpu_counts(question: TrainingQuestion) -> list[IntArray]:
    """Return the GPU counts to plan for, in the batches in which they are tried.

    A fixed number is one batch of one, a range one batch. Where the fewest are asked for, ever larger batches follow
    one another: a node, and twice as many GPUs each time.
    """
    count, node = question.hardware.gpus, question.hardware.gpus_per_node
    counts = np.array(_counts(question))
    if count.minimum == count.maximum or not wants_fewest_gpus(question):
        return [counts]
    octave = np.ceil(np.log2(np.maximum(counts / node, 1.0)))
    return [counts[octave == each] for each in np.unique(octave)]


def fixed_product(question: TrainingQuestion) -> int:
    """Return what the fixed degrees multiply to, of which the number of GPUs is a multiple."""
    degrees = (getattr(question.layout, field) for field in DEGREES_OF_GPUS)
    return math.prod(degree for degree in degrees if degree is not None)


def _counts(question: TrainingQuestion) -> list[int]:
    """Return the GPU counts to plan for: of a range every one at first, then whole nodes, later on not all of them.

    Only multiples of what the fixed degrees multiply to can exist. The ends of a range that was named are looked at,
    whole nodes or not; without one every count is looked at within a node only.
    """
    count, node = question.hardware.gpus, question.hardware.gpus_per_node
    product = fixed_product(question)
    in_full = product * max(node // product, 1) if count.is_free else max(node, product * MOST_COUNTS_IN_FULL)
    step = math.lcm(node, product)
    every = range(product, min(in_full, count.maximum) + 1, product)
    larger: Sequence[int] = range(step, count.maximum + 1, step)
    if count.maximum > step * MOST_NODE_COUNTS:
        larger = _thinned(
            step, count.maximum // step, each_octave=STEPS_AN_OCTAVE if wants_fewest_gpus(question) else 1
        )
    inside = {number for number in (*every, *larger) if number >= count.minimum}
    return sorted(inside if count.is_free and inside else {*inside, count.minimum, count.maximum})


def _thinned(step: int, most: int, *, each_octave: int) -> list[int]:
    """Return so many of a step's multiples in each octave: 1, 2, 4, 8 times the step with one, all of the first few."""
    kept = []
    for octave in range(most.bit_length()):
        stride = max(2**octave // each_octave, 1)
        kept += [step * number for number in range(2**octave, min(2 ** (octave + 1), most + 1), stride)]
    return kept


def usual_counts(counts: IntArray) -> IntArray:
    """Return the GPU counts of a batch on which the usual layouts are looked at; of many they are every so-manieth."""
    some = np.unique(np.linspace(0, counts.size - 1, min(counts.size, MOST_USUAL_COUNTS)).round().astype(np.int64))
    return counts[some]
