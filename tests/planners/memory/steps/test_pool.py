"""Pools of pieces by name: each one's most is its own, whenever that is."""

import itertools

import numpy as np
import pytest

from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import Step
from tests.planners.memory.steps.small_layers import LAYOUTS, STAGES, drawn

APART = (frozenset({"kept"}), frozenset({"buffer", "ahead"}))


def most(events, counts):
    return max(itertools.accumulate((event.change for event in events if counts(event.name)), initial=0))


@pytest.mark.parametrize("seed", range(40))
def test_the_most_of_a_pool_is_that_of_the_events_of_its_pieces(seed):
    program, stage = drawn(seed)
    step = Step(APART)
    program.run(step, stage)
    main, *others = (np.broadcast_to(peak, (STAGES, LAYOUTS)) for peak in step.peaks)
    for row, index in np.ndindex(STAGES, LAYOUTS):
        single = RecordedStep()
        program.run(single, at_stage(stage, row, index))
        events = list(single.events)
        assert main[row, index] == most(events, lambda name: name not in APART[0] | APART[1])
        assert [peak[row, index] for peak in others] == [most(events, names.__contains__) for names in APART]


def test_a_pool_s_most_may_be_held_when_the_others_hold_little():
    step = Step([frozenset({"gathered"})])
    step.drop(step.take("communication", "gathered", np.float64(5)))
    step.take("logits", "logits", np.float64(7))
    assert step.peaks == (7, 5)
    assert step.peak == 7
