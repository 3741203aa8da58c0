"""Stages whose forward passes run beside backward passes of other micro-batches; [field, rounds, stage]."""

import pytest

from plimsoll.planners.layouts.interleaving import MOST_ROUNDS
from plimsoll.planners.layouts.pairing import Paired, paired_layers


def paired(layers, degree, *, rounds=2):
    every = paired_layers(layers, degree).reshape(len(Paired._fields), MOST_ROUNDS, degree)
    return Paired(*(each[rounds - 1].tolist() for each in every))


def test_without_a_pipeline_one_micro_batch_leaves_as_another_comes():
    found = paired((12,), 1)
    assert (found.waiting, found.at_head, found.at_embedding) == ([12], [12], [12])


def test_half_of_a_stage_s_layers_remember_the_micro_batch_that_was_differentiated():
    # As the sixth of twelve pairs begins five layers are done, and none of them is the next micro-batch's yet.
    assert paired((12,), 1).remembered == [5]


def test_one_micro_batch_alone_has_no_pair():
    assert paired((12,), 1, rounds=1).waiting == [0]


def test_an_interleaved_stage_waits_with_the_passes_that_have_begun_and_one_more():
    # Of two stages with two chunks of two layers: 2 x 1 + 2 + 1 passes on the first, 2 + 1 on the last.
    assert paired((2, 2, 2, 2), 2).waiting == [10, 6]


def test_layers_of_a_chunk_that_is_over_are_remembered_until_its_next_forward_pass():
    # The last stage goes through its lower chunk, in both directions, as nothing waits in the higher one.
    assert paired((2, 2, 2, 2), 2).remembered == [0, 2]


def test_the_loss_finds_the_layers_that_the_backward_pass_beside_it_has_left():
    # The last stage has a layer and then the head alone: three passes of the lower chunk wait as the head's begins
    # beside a backward pass through one of them.
    found = paired((1, 1, 2, 0), 2)
    assert (found.waiting[1], found.at_head[1]) == (3, 2)


@pytest.mark.parametrize("rounds", [2, 3])
def test_further_rounds_change_nothing_of_even_chunks(rounds):
    assert paired((3,) * 8, 4, rounds=rounds).waiting == [33, 27, 21, 15]
