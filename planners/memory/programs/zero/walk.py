"""A micro-batch as DeepSpeed's engine goes through it, tensor by tensor: what it holds beside states and activations.

All decisions of the engine hang on numbers of elements and on the number of ranks, and on nothing else of a layout. So
they are followed once for each number of ranks, and what a program needs of them is how much more is held at most, and
in the end, than as each layer began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plimsoll.planners.memory.programs.zero.levels import Levels, Numbers
from plimsoll.planners.memory.programs.zero.reduction import Reduction
from plimsoll.planners.memory.programs.zero.tensors import At, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Elements beyond those at a part's beginning: for each moment of a layer the most that is held, and what is left.

    `forward` and `backward` are [part, moment], what is left last; parts are the layers, the head and the embedding.
    `before_end` is held just before the last bucket is flushed, `end` at most as it is.
    """

    forward: Numbers
    backward: Numbers
    before_end: int
    end: int


class Reduced(NamedTuple):
    """Elements of gradients that are held at most as each comes, and after it, first of all before any of them.

    `at_end` are those as the last bucket is flushed.
    """

    meanwhile: Numbers
    held: Numbers
    at_end: int


def reduced_by(reductions: Sequence[Reduction], gradients: Sequence[Tensor]) -> Reduced:
    """Return what gradients hold that come in this order, of some ranks the most at each."""
    meanwhile, held = np.zeros((2, len(reductions), len(gradients) + 1), dtype=np.int64)
    for rank, reduction in enumerate(reductions):
        for place, tensor in enumerate(gradients, start=1):
            meanwhile[rank, place] = reduction.hook(tensor)
            held[rank, place] = reduction.held
    return Reduced(meanwhile.max(axis=0), held.max(axis=0), max(reduction.end() for reduction in reductions))


def walk(levels: Levels, reduced: Reduced, *, spared: int, pulled_by: int | None) -> Walk:
    """Go through a micro-batch's events with one way to reduce gradients.

    So much is `spared` in the first micro-batch, which finds no moments. Parts that wait on the host are pulled by so
    many ranks, each its own.
    """
    usual, first = levels.usual, levels.first
    most, gathered = np.maximum(usual[:2], first[:2] - spared)
    if pulled_by:
        most = most - (-np.maximum(usual[2], first[2]) // pulled_by)
    is_reduced = levels.made < 0
    so_far = np.cumsum(is_reduced)
    held = reduced.held[so_far]
    most = most + np.cumsum(levels.made) + np.where(is_reduced, reduced.meanwhile[so_far], held)
    left = gathered + held
    forward, backward = (
        _passages(levels, most, left, begin, end) for begin, end in ((0, levels.turn), (levels.turn, len(left)))
    )
    stays = int(gathered[-1]) if len(left) else 0
    return Walk(forward, backward, stays + int(reduced.held[-1]), stays + reduced.at_end)


def _passages(levels: Levels, most: Numbers, left: Numbers, begin: int, end: int) -> Numbers:
    """Return the passages of a pass through the parts."""
    passages = np.zeros((levels.parts, len(At) + 1), dtype=np.int64)
    parts = levels.layers[begin:end]
    if not len(parts):
        return passages
    starts = np.flatnonzero(np.diff(parts, prepend=parts[0] - 1)) + begin
    before = np.where(starts > 0, left[starts - 1], 0)
    ends = np.append(starts[1:], end)
    began = np.repeat(before, ends - starts)
    np.maximum.at(passages, (parts, levels.moments[begin:end]), most[begin:end] - began)
    passages[parts[starts - begin], -1] = left[ends - 1] - before
    return passages
