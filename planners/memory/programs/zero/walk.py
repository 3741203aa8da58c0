"""A micro-batch as DeepSpeed's engine goes through it, tensor by tensor: what it holds beside states and activations.

All decisions of the engine hang on numbers of elements and on the number of ranks, and on nothing else of a layout. So
they are followed once for each number of ranks, and what a program needs of them is how much more is held at most, and
in the end, than as each layer began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.memory.programs.zero.levels import Levels, Numbers
from plimsoll.planners.memory.programs.zero.reduction import Reduction
from plimsoll.planners.memory.programs.zero.tensors import At


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


def walk(levels: Levels, reductions: Sequence[Reduction], *, spared: int, pulled_by: int | None) -> Walk:
    """Go through a micro-batch's events with one way to reduce gradients, and the most of some ranks at each.

    So much is `spared` in the first micro-batch, which finds no moments. Parts that wait on the host are pulled by so
    many ranks, each its own.
    """
    usual, first = levels.usual, levels.first
    most, gathered = np.maximum(usual[:2], first[:2] - spared)
    if pulled_by:
        most = most - (-np.maximum(usual[2], first[2]) // pulled_by)
    of_ranks = [_reduced(levels, reduction) for reduction in reductions]
    most = most + np.cumsum(levels.made) + np.maximum.reduce([meanwhile for meanwhile, _ in of_ranks])
    left = gathered + np.maximum.reduce([held for _, held in of_ranks])
    forward, backward = (
        _passages(levels, most, left, begin, end) for begin, end in ((0, levels.turn), (levels.turn, len(left)))
    )
    stays = int(gathered[-1]) if len(left) else 0
    before_end = stays + max(reduction.held for reduction in reductions)
    return Walk(forward, backward, before_end, stays + max(reduction.end() for reduction in reductions))


def _reduced(levels: Levels, reduction: Reduction) -> tuple[Numbers, Numbers]:
    """Return what is held of gradients during each event at most, and after it."""
    meanwhile, kept = [0], [0]
    for tensor in levels.reduced:
        meanwhile.append(reduction.hook(tensor))
        kept.append(reduction.held)
    is_reduced = levels.made < 0
    so_far = np.cumsum(is_reduced)
    held = np.array(kept, dtype=np.int64)[so_far]
    return np.where(is_reduced, np.array(meanwhile, dtype=np.int64)[so_far], held), held


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
