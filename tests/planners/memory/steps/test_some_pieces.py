"""A step of some of its pieces, against the events of those pieces alone."""

import numpy as np
import pytest

from plimsoll.planners.memory.steps.on_rank import Moment
from plimsoll.planners.memory.steps.record import RecordedStep, at_stage
from plimsoll.planners.memory.steps.some_pieces import StepOfSome
from tests.planners.memory.steps.small_layers import LAYOUTS, STAGES, drawn


def amounts(*values):
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize("seed", range(40))
def test_the_most_of_all_pieces_is_the_step_s_own(seed):
    program, stage = drawn(seed)
    step = StepOfSome(lambda _name: True)
    program.run(step, stage)
    peaks = np.broadcast_to(step.peak, (STAGES, LAYOUTS))
    for row, index in np.ndindex(STAGES, LAYOUTS):
        single = RecordedStep()
        program.run(single, at_stage(stage, row, index))
        assert peaks[row, index] == max((event.total for event in single.events), default=0)


def test_pieces_of_other_names_are_not_there():
    step = StepOfSome({"weights"}.__contains__)
    step.take("logits", "logits", amounts(9))
    step.drop(step.take("communication", "weights", amounts(2)))
    step.take("communication", "weights", amounts(1))
    assert step.peak.tolist() == [2]


def test_a_piece_that_counts_grows_shrinks_and_is_resized():
    step = StepOfSome({"weights"}.__contains__)
    weights, other = step.carry("communication", "weights"), step.carry("communication", "other")
    for held in (weights, other):
        step.grow(held, amounts(4))
        step.shrink(held, amounts(3))
        step.resize(held, amounts(6))
    assert (weights.amount.tolist(), other.amount.tolist()) == ([6], 0.0)
    assert step.peak.tolist() == [6]


@pytest.mark.parametrize(("name", "most"), [("layer at work", 7), ("weights", 0)])
def test_a_layer_s_moments_count_by_one_name(name, most):
    step = StepOfSome({name}.__contains__)
    step.moments([Moment("attention", amounts(3), amounts(1)), Moment("norm", amounts(2), amounts(5))])
    assert step.peak.max() == most
