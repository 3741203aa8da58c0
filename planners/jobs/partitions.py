"""Blocks in a row cut into stages by counts or by weights, as frameworks other than Megatron-LM cut them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MOST_KEPT = 64


def first_have_more(num_blocks: int, stages: int) -> tuple[int, ...]:
    """Return equal counts, what is left over going one each to the first stages.

    Source: DeepSpeed 0.19, runtime/utils.py, `partition_uniform`, and `partition_balanced` of blocks that all weigh
    the same.
    """
    each, rest = divmod(num_blocks, stages)
    return tuple(each + (stage < rest) for stage in range(stages))


def with_fewer_at_ends(num_layers: int, stages: int, fewer_first: int, fewer_last: int) -> tuple[int, ...] | None:
    """Return counts of layers that are equal but for so many fewer at either end, and what is left over.

    Source: torchtitan 0.2.2, distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part`.
    """
    if stages == 1:
        return (num_layers,)
    counted = first_have_more(num_layers + fewer_first + fewer_last, stages)
    if min(counted) < max(fewer_first, fewer_last, 1):
        return None
    return (counted[0] - fewer_first, *counted[1:-1], counted[-1] - fewer_last)


def balanced_by_weight(weights: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Return how many blocks each stage gets where the heaviest and the lightest are as close as can be.

    Of ties the last stage has the fewest blocks, then the one before it. Source: DeepSpeed 0.19, runtime/utils.py,
    `partition_balanced`.
    """
    if len(weights) <= stages:
        return first_have_more(len(weights), stages)
    starts = _starts_of_last(weights)
    ends = [len(weights)]
    for parts in range(stages, 0, -1):
        ends.append(int(starts[parts, ends[-1]]))
    return tuple(end - start for start, end in itertools.pairwise(reversed(ends)))


@functools.lru_cache(maxsize=MOST_KEPT)
def _starts_of_last(weights: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return where the last of so many parts of the first blocks starts, [parts, blocks], by dynamic programming."""
    most = len(weights)
    before = np.concatenate(([0.0], np.cumsum(weights, dtype=np.float64)))
    heaviest, lightest = np.full(most + 1, np.inf), np.full(most + 1, np.inf)
    heaviest[0] = 0
    starts = np.zeros((most + 1, most + 1), dtype=np.int64)
    for parts in range(1, most + 1):
        heavier, lighter = np.full(most + 1, np.inf), np.full(most + 1, np.inf)
        for end in range(parts, most + 1):
            last = before[end] - before[:end]
            most_of, least_of = np.maximum(heaviest[:end], last), np.minimum(lightest[:end], last)
            # Of equal costs the one with the latest start.
            start = end - 1 - int((most_of - least_of)[::-1].argmin())
            starts[parts, end], heavier[end], lighter[end] = start, most_of[start], least_of[start]
        heaviest, lightest = heavier, lighter
    return starts


def layers_between(counts: Sequence[int], before: int, num_layers: int) -> tuple[int, ...]:
    """Return how many layers each stage gets of blocks in a row, of which so many stand before the layers."""
    ends = (0, *itertools.accumulate(counts))
    layers = range(before, before + num_layers)
    return tuple(max(min(end, layers.stop) - max(start, layers.start), 0) for start, end in itertools.pairwise(ends))
