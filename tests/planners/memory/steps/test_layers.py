"""Runs of like layers: the first, one for all between, and the last."""

import numpy as np
import pytest

from plimsoll.planners.memory.steps.layers import Part, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from tests.planners.memory.steps.small_layers import layer, run, unit

DENSE, MIXTURE = layer(buffer=3), layer(buffer=8, experts=unit(buffer=5))


@pytest.mark.parametrize(("most", "parts"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 3, 2]), (9, [1, 3, 2])])
def test_parts_that_no_layout_has_are_left_out(most, parts):
    layers = layers_of([run([0, most], DENSE)])
    assert [part for _, part, _ in layers.every()] == parts


def test_going_down_turns_runs_groups_and_layers_around():
    layers = layers_of([run([2], DENSE, MIXTURE), run([1], DENSE)])
    buffers = [[own.bytes.unit.buffer for own in group] for _, _, group in layers.every(downwards=True)]
    assert buffers == [[3], [8, 3], [8, 3]]


def test_a_run_has_a_last_layer_from_two_and_one_between_from_three_on():
    (of_run,) = layers_of([run([1, 2, 3], DENSE)]).runs
    assert of_run.present(Part.FIRST) is True
    assert of_run.present(Part.LAST).tolist() == [0, 1, 1]
    assert of_run.present(Part.MIDDLE).tolist() == [0, 0, 1]


def held(mask):
    return mask if isinstance(mask, bool) else mask.tolist()


def test_the_lowest_layer_is_the_first_of_the_first_run_that_is_there():
    layers = layers_of([run([0, 1], DENSE), run([2, 2], MIXTURE)])
    lowest = [held(own.is_lowest) for _, _, group in layers.every() for own in group]
    assert lowest == [True, [1, 0], False]


def test_the_highest_layer_is_the_last_of_the_last_run_that_is_there():
    layers = layers_of([run([1, 3], DENSE), run([0, 1], MIXTURE)])
    highest = [(held(own.is_highest), own.is_between) for _, _, group in layers.every() for own in group]
    # A run's first layer is its last where it is alone; of the second run there is at most one.
    assert highest == [([1, 0], False), (False, True), ([1, 0], False), ([0, 1], False)]


def test_below_a_run_s_first_layer_lies_the_last_of_the_runs_below():
    nothing = np.asarray(77.0)
    layers = layers_of([run([0, 1], DENSE), run([2, 2], MIXTURE)])
    (lowest,), (first,), (last,) = [group for _, _, group in layers.every()]
    assert lowest.buffers_below(nothing) == (nothing, NO_BYTES)
    assert [found.tolist() for found in first.buffers_below(nothing)] == [[77, 3], [0, 0]]
    assert last.buffers_below(nothing) == (8, 5)


def test_above_all_lies_what_the_backward_pass_gathers_first():
    layers = layers_of([run([1, 1], DENSE), run([0, 2], MIXTURE)])
    assert [found.tolist() for found in layers.highest_buffers()] == [[3, 8], [0, 5]]
    assert layers_of([run([0], DENSE)]).highest_buffers()[0] == 0


def test_of_a_run_of_one_its_layer_is_the_lowest_and_the_highest():
    ((only,),) = [group for _, _, group in layers_of([run([1], DENSE)]).every()]
    assert (only.is_lowest, only.is_highest) == (True, True)
    assert layers_of([]).highest_buffers() == (NO_BYTES, NO_BYTES)
