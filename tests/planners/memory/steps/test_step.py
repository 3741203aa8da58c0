"""The most that many layouts hold at once, against the same program gone through layer by layer for each of them."""

import numpy as np
import pytest

from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.layers import layers_of
from plimsoll.planners.memory.steps.on_rank import Moment
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import Step
from tests.planners.memory.steps.small_layers import LAYOUTS, STAGES, drawn, layer, run


def amounts(*values):
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize("seed", range(300))
def test_the_peak_is_the_most_over_all_events_with_every_layer_by_itself(seed):
    program, stage = drawn(seed)
    step = Step()
    program.run(step, stage)
    peaks = np.broadcast_to(step.peak, (STAGES, LAYOUTS))
    for row, index in np.ndindex(STAGES, LAYOUTS):
        single = RecordedStep()
        program.run(single, at_stage(stage, row, index))
        assert peaks[row, index] == max((event.total for event in single.events), default=0)


def test_what_is_let_go_of_is_not_there_when_the_next_piece_is():
    step = Step()
    step.drop(step.take("logits", "logits", amounts(3, 9)))
    step.take("activations", "kept", amounts(5, 5))
    assert step.peak.tolist() == [5, 9]


def test_work_and_all_else_meet():
    # 2 of weights beside 5 of activations, then 8 of weights alone.
    step = Step()
    weights = step.take("parameters", "weights", amounts(2))
    step.drop(step.take("activations", "kept", amounts(5)))
    step.grow(weights, amounts(6))
    assert step.peak.tolist() == [8]
    step.take("activations", "kept", amounts(1))
    assert step.peak.tolist() == [9]


def test_what_happens_in_some_layouts_leaves_the_others_alone():
    step = Step()
    with step.where(amounts(1, 0, 1)), step.where(amounts(1, 1, 0)):
        piece = step.take("logits", "logits", amounts(4, 4, 4))
    assert step.peak.tolist() == [4, 0, 0]
    with step.where(amounts(0, 0, 1)):
        step.drop(piece)
    step.take("gradients", "gradients", amounts(1, 1, 1))
    assert step.peak.tolist() == [5, 1, 1]


def test_a_piece_let_go_of_in_some_layouts_is_let_go_of_in_the_others_later():
    step = Step()
    piece = step.take("logits", "logits", amounts(4, 4))
    with step.where(amounts(1, 0)):
        step.drop(piece)
    step.drop(piece)
    step.take("gradients", "gradients", amounts(5, 5))
    assert step.peak.tolist() == [5, 5]


def test_within_no_layout_nothing_happens_whatever_is_asked_for_inside():
    step = Step()
    with step.where(False), step.where(True), step.where(amounts(1)):
        step.take("logits", "logits", amounts(4))
    assert step.peak.tolist() == 0


def test_a_piece_keeps_its_size_under_another_name():
    step = Step()
    ahead, buffer = step.take("communication", "ahead", amounts(7)), step.carry("communication", "buffer")
    step.hand_over(ahead, buffer)
    step.drop(ahead)
    step.take("communication", "next", amounts(1))
    assert step.peak.tolist() == [8]
    step.drop(buffer)
    step.take("communication", "last", amounts(7))
    assert step.peak.tolist() == [8]


def test_a_resized_piece_goes_from_one_size_to_the_other_at_once():
    step = Step()
    piece = step.take("logits", "logits", amounts(4, 4))
    step.resize(piece, amounts(6, 1))
    step.take("gradients", "gradients", amounts(1, 1))
    assert step.peak.tolist() == [7, 4]


def test_the_worst_of_a_layer_s_moments_counts():
    step = Step()
    step.moments((Moment("matrix", amounts(4, 1), amounts(2, 2)), Moment("norm", amounts(5, 5), amounts(0, 9))))
    assert step.peak.tolist() == [6, 14]


def test_moments_count_less_where_a_layer_need_not_keep_all_and_never_less_than_nothing():
    step = Step()
    moments = (Moment("matrix", amounts(4), amounts(0)), Moment("norm", amounts(1), amounts(2)))
    step.moments(moments, unsaved=amounts(3))
    assert step.peak.tolist() == [2]


def test_quiet_events_change_what_is_held_and_are_no_peak_of_their_own():
    step = Step()
    with step.quiet():
        piece = step.take("logits", "logits", amounts(9))
        step.shrink(piece, amounts(7))
    step.take("gradients", "gradients", amounts(1))
    assert step.peak.tolist() == [3]


def test_not_quiet_is_as_without_it():
    step = Step()
    with step.quiet(False):
        step.drop(step.take("logits", "logits", amounts(9)))
    assert step.peak.tolist() == [9]


@pytest.mark.parametrize("count", range(6))
def test_as_much_is_kept_as_there_are_layers(count):
    # 10 each, and 3 for a moment in the last of them.
    step = Step()
    for own in step.each(layers_of([run([count, 5], layer(kept=10, beside_return=3))])):
        step.take("activations", "kept", own.bytes.kept)
        step.drop(step.take("activations", "moment", own.bytes.beside_return))
    assert np.broadcast_to(step.peak, 2).tolist() == [10 * count + 3 * (count > 0), 53]


def test_what_is_handed_from_layer_to_layer_is_the_last_one_s():
    # Buffers of 10 and 4 that replace each other: 14 as one meets the other; 5 of sums grow with every layer.
    step = Step()
    buffer, sums = step.carry("communication", "buffer"), step.carry("gradients", "sums")
    for own in step.each(layers_of([run([4], layer(buffer=10, shard=5)), run([1], layer(buffer=4, shard=5))])):
        ahead = step.take("communication", "ahead", own.bytes.unit.buffer)
        step.drop(buffer)
        step.hand_over(ahead, buffer)
        step.grow(sums, own.bytes.unit.shard)
    # In the fourth layer 2 x 10 and 15 of sums.
    assert step.peak.tolist() == [35]
    step.drop(buffer)
    step.take("communication", "rest", amounts(11))
    assert step.peak.tolist() == [36]


def test_a_piece_let_go_of_at_once_leaves_what_was_held_before_as_it_was():
    step = Step()
    kept = step.take("activations", "kept", amounts(3, 0))
    step.drop(step.take("activations", "moment", amounts(4, 6)))
    step.drop(kept)
    step.take("activations", "next", amounts(6, 6))
    assert step.peak.tolist() == [7, 6]


def test_what_is_taken_of_both_kinds_before_anything_is_let_go_of_adds_up():
    step = Step()
    pieces = [step.take(item, item, amounts(2)) for item in ("activations", "gradients", "logits", "communication")]
    step.drop(*pieces)
    assert step.peak.tolist() == [8]


def test_a_piece_is_resized_and_let_go_of_in_the_layouts_that_it_was_taken_in():
    step = Step()
    some, others = amounts(1, 0), amounts(1, 1)
    with step.where(others), step.where(some):
        piece = step.take("logits", "logits", amounts(4, 4))
        step.resize(piece, amounts(9, 9))
    with step.where(others), step.where(some):
        step.drop(piece)
    step.take("logits", "next", amounts(1, 1))
    assert step.peak.tolist() == [9, 1]
