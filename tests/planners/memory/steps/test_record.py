"""A step written down event by event, and programs that do not balance."""

import numpy as np
import pytest

from benchmarks.reserved_memory.planned_events import each_by_itself
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.layers import Layers, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment
from plimsoll.planners.memory.steps.record import RecordedStep, UnbalancedStep
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD
from plimsoll.planners.memory.timeline import moments_of
from tests.planners.memory.steps.small_layers import drawn, layer, run


def size(amount):
    return np.float64(amount)


def ended(*actions):
    """Return what closing a step says after these actions, each of which gets the step and all pieces so far."""
    step, pieces = RecordedStep(), []
    for action in actions:
        pieces.append(action(step, *pieces))
    step.close()
    return list(step.events)


def test_an_event_is_a_change_with_all_that_is_held_after_it():
    step = RecordedStep()
    weights = step.take("parameters", "weights", size(8))
    step.phase = BACKWARD
    step.take("logits", "logits", size(3))
    step.drop(weights)
    assert [(event.phase, event.name, event.change, event.held, event.total) for event in step.events] == [
        (FORWARD, "weights", 8, (8, 0, 0, 0, 0, 0), 8),
        (BACKWARD, "logits", 3, (8, 0, 0, 0, 3, 0), 11),
        (BACKWARD, "weights", -8, (0, 0, 0, 0, 3, 0), 3),
    ]


def test_nothing_is_written_down_of_nothing():
    step = RecordedStep()
    step.drop(step.take("logits", "logits", size(0)))
    with step.where(False):
        step.take("logits", "logits", size(5))
    assert list(step.events) == []


def test_layers_are_counted_from_the_lowest_and_no_event_between_them_is_of_one():
    stage: Layers = at_stage(layers_of([run(2, layer(kept=1), layer(kept=2))]), 0, 0)
    step = RecordedStep()
    for own in step.each(stage, downwards=True):
        step.take("activations", "kept", own.bytes.kept)
    step.take("logits", "logits", size(1))
    assert [(event.layer, event.change) for event in step.events] == [(3, 2), (2, 1), (1, 2), (0, 1), (None, 1)]


@pytest.mark.parametrize("seed", range(40))
def test_layers_that_one_stands_for_are_written_down_as_if_each_were_gone_through(seed):
    program, stage = drawn(seed)
    own = at_stage(stage, 1, 2)
    runs, every = RecordedStep(), RecordedStep()
    program.run(runs, own)
    program.run(every, each_by_itself(own))
    assert list(runs.events) == list(every.events)
    if every.events.written:
        assert runs.events.largest == max(every.events, key=lambda event: event.total)
    assert moments_of(runs.events, range(99)) == moments_of(every.events, range(99))


def test_what_the_layers_between_do_is_written_once():
    step, stage = RecordedStep(), at_stage(layers_of([run(9, layer(kept=1))]), 0, 0)
    for own in step.each(stage):
        step.take("activations", "kept", own.bytes.kept)
    assert [event.layer for event in step.events.written] == [0, 1, 8]
    assert [event.layer for event in step.events] == list(range(9))
    assert [event.total for event in step.events] == list(range(1, 10))


def test_moments_follow_each_other():
    step = RecordedStep()
    moments = (Moment("matrix", size(4), size(2)), Moment("norm", size(5), size(0)))
    step.moments(moments, unsaved=size(1))
    assert [(event.name, event.item, event.total) for event in step.events if event.change > 0] == [
        ("matrix", "activations", 3),
        ("matrix", "gradients", 5),
        ("norm", "activations", 4),
    ]


@pytest.mark.parametrize("row", [0, 1])
def test_a_stage_s_quantities_are_single_numbers_and_the_layers_that_it_has(row):
    counts = np.array([[1, 2], [0, 3]])
    stage = at_stage(layers_of([run(counts, layer(kept=np.array([[5.0, 6.0], [7.0, 8.0]])))]), row, 1)
    assert [(of_run.count.tolist(), of_run.unit[0].kept) for of_run in stage.stated] == [[([2], 6)], [([3], 8)]][row]


def test_a_run_that_a_stage_has_nothing_of_is_left_out():
    stage = at_stage(layers_of([run([[0]], layer()), run([[2]], layer(kept=3))]), 0, 0)
    assert [own.is_lowest for _, _, group in stage.every() for own in group] == [True, False]


def test_what_is_left_behind_need_not_be_let_go_of():
    def leave(step):
        step.leave(step.take("parameters", "weights", size(5)))

    assert len(ended(leave)) == 1


def test_a_piece_that_nobody_lets_go_of_is_named_with_its_line():
    with pytest.raises(UnbalancedStep, match=r"Never lets go of 5 bytes of 'weights' .* at test_record.py:\d"):
        ended(lambda step: step.take("parameters", "weights", size(5)))


def test_what_grows_after_it_was_let_go_of_has_to_be_let_go_of_again():
    with pytest.raises(UnbalancedStep, match="Never lets go of 2 bytes"):
        ended(
            lambda step: step.take("gradients", "sum", size(5)),
            lambda step, piece: step.drop(piece),
            lambda step, piece, _: step.grow(piece, size(2)),
        )


def test_a_piece_is_let_go_of_once():
    def twice(step):
        piece = step.take("logits", "logits", size(5))
        step.drop(piece)
        step.drop(piece)

    with pytest.raises(UnbalancedStep, match=r"Lets go of 'logits' .* twice"):
        ended(twice)


def test_what_was_handed_over_is_not_let_go_of_by_its_old_name():
    def handed(step):
        ahead, buffer = step.take("communication", "ahead", size(5)), step.carry("communication", "buffer")
        step.hand_over(ahead, buffer)
        step.drop(buffer)
        step.drop(ahead)

    with pytest.raises(UnbalancedStep, match=r"Lets go of 'ahead' .* twice"):
        ended(handed)


def test_a_piece_is_handed_over_within_its_item():
    def handed(step):
        step.hand_over(step.take("communication", "sum", size(5)), step.carry("gradients", "sums"))

    with pytest.raises(UnbalancedStep, match="another item"):
        ended(handed)


def test_a_carried_piece_may_be_empty_and_one_that_was_never_taken_is_not_let_go_of():
    def empty(step):
        carried = step.carry("communication", "buffer")
        step.drop(carried)
        step.drop(carried)
        with step.where(False):
            piece = step.take("logits", "logits", size(5))
        step.drop(piece)

    assert ended(empty) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda step, piece: step.shrink(piece, size(6)), "Holds -1 bytes"),
        (lambda step, piece: step.resize(piece, size(-2)), "Holds -2 bytes"),
        (lambda step, piece: step.grow(piece, size(-1)), "grow by -1"),
        (lambda step, piece: step.shrink(piece, size(-1)), "shrink by -1"),
        (lambda step, piece: step.take("logits", "more", size(-1)), "Holds -1 bytes of 'more'"),
    ],
)
def test_less_than_nothing_is_never_held(wrong, told):
    with pytest.raises(UnbalancedStep, match=told):
        ended(lambda step: step.take("logits", "logits", size(5)), wrong)


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_program_s_events_add_up(seed):
    program, stage = drawn(seed)
    step = RecordedStep()
    program.run(step, at_stage(stage, 1, 2))
    held = 0
    for event in step.events:
        held += event.change
        assert event.total == held
        assert min(event.held) >= 0


def test_nothing_stays_nothing():
    step = RecordedStep()
    step.drop(None)
    step.grow(step.carry("gradients", "sums"), NO_BYTES)
    step.close()
    assert list(step.events) == []
