"""How DeepSpeed's engine reduces gradients: buckets, parts and copies, counted by hand in elements."""

import pytest

from plimsoll.planners.architecture import Part
from plimsoll.planners.memory.programs.zero.reduction import (
    DividedAsTheyCome,
    Kept,
    Parts,
    ScatteredAsTheyCome,
    Sending,
    divided_at_boundary,
    fullest_ranks,
    runs_beyond,
    whole_at_boundary,
)
from plimsoll.planners.memory.programs.zero.tensors import At, Tensor


def _tensors(*sizes):
    return [Tensor(elements=size, learns=True, module="m", part=Part.ATTENTION, at=At.LAST) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "each", "touched", "slices"),
    # Of 20 elements a half each: the last tensor is the second half, or two reach into it, one with 4 of its 8.
    [((6, 4, 10), 10, 10, [10]), ((6, 8, 6), 10, 14, [4, 6]), ((3, 2), 4, 2, [1])],
)
def test_the_last_part_touches_whole_tensors(sizes, each, touched, slices):
    parts = Parts(_tensors(*sizes), 2)
    assert (parts.each, parts.touched, parts.slices) == (each, touched, slices)


def test_the_fullest_ranks_are_the_first_the_last_and_the_one_that_touches_most():
    # Of 16 elements the second four are of two tensors, of 1 and of 7; the third four are of the latter alone.
    tensors = _tensors(4, 1, 7, 2, 2)
    assert [Parts(tensors, 4, rank).touched for rank in range(4)] == [4, 8, 7, 4]
    assert fullest_ranks(tensors, 4) == [0, 1, 3]
    assert fullest_ranks(_tensors(4, 4), 2) == [0, 1]


def test_only_slices_of_several_ranks_are_copied():
    parts = Parts(_tensors(40), 4)
    assert parts.each == 10
    assert parts.copied(0, 8, bucket=20) == 0
    assert parts.copied(0, 14, bucket=20) == 14
    # 10 and 10 are more than 15 and go together, then 10 and the last 5.
    assert parts.copied(0, 35, bucket=15) == 20


def test_a_bucket_that_overflows_is_flushed_before_the_next_gradient_is_copied():
    tensors = _tensors(5, 4, 3)
    reduction = DividedAsTheyCome(tensors, Parts(tensors, 2), 6, None)
    # The part is the last 6 of 12: it touches the last two tensors, whole.
    assert [reduction.hook(tensor) for tensor in reversed(tensors)] == [3, 7 + 4, 7 + 4 + 5]
    assert (reduction.end(), reduction.held) == (7, 7)


def test_a_gradient_larger_than_the_bucket_waits_for_the_next_one():
    tensors = _tensors(2, 10, 3)
    reduction = DividedAsTheyCome(tensors, Parts(tensors, 1), 6, None)
    assert reduction.hook(tensors[2]) == 3
    # The part is all 15 at one rank alone.
    assert (reduction.hook(tensors[1]), reduction.held) == (15 + 10, 15 + 10)
    assert (reduction.hook(tensors[0]), reduction.held) == (15 + 10 + 2, 15)


def test_sent_to_the_host_a_gradient_is_there_twice_and_then_with_its_norm():
    tensors = _tensors(2, 10, 3)
    sending = Sending(norm=4, cast=2, adds_up=False)
    reduction = DividedAsTheyCome(tensors, Parts(tensors, 1), 6, sending)
    assert reduction.hook(tensors[2]) == 3
    # The three before are flushed beside it: 4 x 3, which is no more than its own copy.
    assert reduction.hook(tensors[1]) == 4 * 3 + 10
    assert (reduction.hook(tensors[0]), reduction.held) == (10 + 4 * 10 + 2, 0)


def test_whole_gradients_are_kept_or_added_up():
    for adds_up, held in ((False, 9), (True, 0)):
        reduction = Kept(adds_up=adds_up)
        assert [reduction.hook(tensor) for tensor in _tensors(5, 4)] == [5, held or 4]
        assert reduction.held == reduction.end() == held


def test_what_divides_evenly_and_is_alone_is_scattered_without_a_copy():
    reduction = ScatteredAsTheyCome(4, 10, None)
    # 6 and 3 are padded to 8 and 4 as the third comes.
    assert [reduction.hook(tensor) for tensor in _tensors(6, 3, 8)] == [6, 3, 12 + 8]
    assert (reduction.end(), reduction.held) == (0, 0)


def test_a_part_sent_to_the_host_comes_back_for_its_norm():
    reduction = ScatteredAsTheyCome(4, 10, Sending(norm=4, cast=2, adds_up=False))
    (tensor,) = _tensors(8)
    reduction.hook(tensor)
    assert reduction.end() == 2 + 4 * 2


def test_without_zero_gradients_are_copied_until_they_are_more_than_half_a_billion():
    million = 10**6
    assert whole_at_boundary(_tensors(400 * million, 200 * million, 250 * million)) == 600 * million
    assert whole_at_boundary(_tensors(600 * million, 250 * million)) == 0
    assert list(runs_beyond([3, 3, 1, 2, 2], 4)) == [[3, 3], [1, 2, 2]]


def test_at_the_boundary_the_copy_takes_the_place_of_what_has_been_moved():
    tensors = _tensors(5, 4, 3)
    assert divided_at_boundary(tensors, Parts(tensors, 2), 6, None) == 12
    # All 15 are there as the first flush finds the part of the one rank.
    tensors = _tensors(2, 10, 3)
    assert divided_at_boundary(tensors, Parts(tensors, 1), 6, None) == 13 + 15
