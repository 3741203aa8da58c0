"""Masks of layouts, and amounts that only some of them have."""

import numpy as np
import pytest

from plimsoll.planners.memory.steps.on_rank import NO_BYTES, either, mask_of, only, opposite, plus, some, without
from tests.planners.memory.steps.small_layers import layer, unit

HALF = np.array([1.0, 0.0])


@pytest.mark.parametrize(("holds", "mask"), [([True, True], True), ([False, False], False)])
def test_a_mask_of_all_or_none_is_no_array(holds, mask):
    assert mask_of(np.array(holds)) is mask
    assert opposite(mask) is not mask


def test_a_mask_of_some_has_ones_and_noughts():
    assert mask_of(np.array([True, False])).tolist() == [1, 0]
    assert opposite(HALF).tolist() == [0, 1]


def test_either_holds_where_one_does():
    assert either(HALF, True) is True
    assert either(False, False) is False
    assert either(False, HALF, opposite(HALF)).tolist() == [1, 1]


def test_an_amount_is_held_where_the_mask_is():
    amount = np.array([5.0, 6.0])
    assert only(True, amount) is amount
    assert only(False, amount) is NO_BYTES
    assert only(HALF, NO_BYTES) is NO_BYTES
    assert only(HALF, amount).tolist() == [5, 0]


def test_an_amount_of_nothing_is_no_array():
    assert some(np.zeros(3)) is NO_BYTES
    assert some(HALF) is HALF


def test_nothing_more_leaves_an_amount_as_it_is():
    assert plus(HALF, NO_BYTES) is HALF
    assert plus(NO_BYTES, HALF) is HALF
    assert plus(HALF, HALF).tolist() == [2, 0]


def test_an_amount_without_a_part_is_at_least_nothing():
    assert without(HALF, NO_BYTES) is HALF
    assert without(np.array([5.0, 1.0]), np.asarray(2.0)).tolist() == [3, 0]


def test_a_layer_s_experts_are_gathered_into_a_buffer_of_their_own_if_any():
    assert layer(buffer=3).buffers == (3, NO_BYTES)
    assert layer(buffer=3, experts=unit(buffer=5)).buffers == (3, 5)


def test_autocast_copies_what_gradients_are_made_of_and_a_rank_keeps_its_shard_of_them():
    own = layer(gradients=6, shard=2)
    assert (own.copies, own.gradients) == (6, 2)
