"""Blocks cut into stages, held against DeepSpeed's own functions."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.jobs.partitions import (
    balanced_by_weight,
    first_have_more,
    layers_between,
    with_fewer_at_ends,
)
from tests.properties.laws import law

theirs: ModuleType = pytest.importorskip("deepspeed.runtime.utils")


def counts(bounds: list[int]) -> tuple[int, ...]:
    return tuple(int(end - start) for start, end in itertools.pairwise(bounds))


@law(100, 2000)
@given(blocks=st.integers(1, 150), stages=st.integers(1, 40))
def test_uniform_parts_are_deepspeed_s(blocks: int, stages: int):
    assert first_have_more(blocks, stages) == counts(theirs.partition_uniform(blocks, stages))


@law(60, 1000)
@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    stages=st.integers(1, 12),
)
def test_balanced_parts_are_deepspeed_s(weights: list[int], stages: int):
    assert balanced_by_weight(tuple(weights), stages) == counts(theirs.partition_balanced(weights, stages))


# The row of blocks that Megatron-DeepSpeed makes, of which only layers weigh, or embedding and head too.
@law(40, 500)
@given(layers=st.integers(1, 70), stages=st.integers(2, 20), ends=st.sampled_from([(0, 0), (1, 0), (1, 1)]))
def test_blocks_of_one_type_are_cut_as_deepspeed_cuts_them(layers: int, stages: int, ends: tuple[int, int]):
    weights = [0, ends[0], *[1] * layers, 0, ends[1], 0]
    parts = theirs.partition_balanced(weights, stages)
    found = with_fewer_at_ends(layers, stages, *ends)
    if found is None:
        # Some stage has neither a layer nor an end that weighs.
        assert layers + sum(ends) < stages
    else:
        held = tuple(sum(2 <= block < 2 + layers for block in range(*span)) for span in itertools.pairwise(parts))
        assert found == held


@pytest.mark.parametrize(
    ("layers", "stages", "held"),
    [
        # 61 = 16 x 3 + 13; 126 = 7 x 18; 94 = 5 x 18 + 4.
        (61, 16, (*(4,) * 13, 3, 3, 3)),
        (126, 7, (18,) * 7),
        (94, 5, (19, 19, 19, 19, 18)),
    ],
)
def test_what_is_left_over_goes_to_the_first_stages(layers: int, stages: int, held: tuple[int, ...]):
    assert with_fewer_at_ends(layers, stages, 0, 0) == held


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        # 32 + 2 = 4 x 8 + 2, less one at either end.
        ((1, 1), (8, 9, 8, 7)),
        ((0, 3), (9, 9, 9, 5)),
        # 32 + 12 = 4 x 11: the last stage has the head alone, and cannot have fewer.
        ((1, 11), (10, 11, 11, 0)),
        ((1, 12), None),
    ],
)
def test_the_ends_have_fewer_layers_by_as_many_as_are_told(ends: tuple[int, int], held: tuple[int, ...] | None):
    assert with_fewer_at_ends(32, 4, *ends) == held


def test_layers_are_counted_between_the_blocks_around_them():
    # Two blocks before three layers, two behind: 3 and 4.
    assert layers_between((3, 4), 2, 3) == (1, 2)
    assert layers_between((1, 4, 2), 2, 3) == (0, 3, 0)
