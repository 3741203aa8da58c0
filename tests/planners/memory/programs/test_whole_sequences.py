"""Small Llamas over tensor-parallel ranks that split the sequence: 64 features, keys of 32, a feed-forward of 128.

Of 32 tokens the stream takes 32 x 64 x 2 = 4,096 bytes whole, and 2,048 on each of two ranks.
"""

import pytest

from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD
from tests.planners.factories import small_llama
from tests.planners.training_cases import events, held, taken

WHOLE, MESSAGE, TOP = 4096, 2048, 3


def step(framework="fsdp2", *, layout=None, **changes):
    degrees = {"data_parallel": 2, "zero_stage": 3, "tensor_parallel": 2, "sequence_parallel": True}
    return events(
        framework,
        model=small_llama(),
        sequence_length=32,
        global_batch_size=2,
        gpus=4,
        layout=degrees | (layout or {}),
        **changes,
    )


def scattered(found, layer=TOP):
    name = "output before its scatter"
    return [e.change for e in found if (e.name, e.layer, e.phase) == (name, layer, FORWARD) and e.change > 0]


def test_a_layer_ends_with_its_whole_output_twice_and_three_parts_of_the_stream():
    assert scattered(step()) == [2 * WHOLE + 3 * MESSAGE]


def test_a_layer_that_is_computed_again_ends_with_its_gathered_input_too():
    # Beside it what the last matrix multiplies: 64 of 128 features.
    assert scattered(step(layout={"recompute": 2})) == [3 * WHOLE + 3 * MESSAGE + 32 * 64 * 2]


def test_whole_sequences_are_neither_gathered_nor_scattered():
    unsplit = step(layout={"tensor_parallel": 1, "sequence_parallel": False, "data_parallel": 4})
    assert scattered(unsplit) == []
    assert not [event for event in unsplit if event.name == "output's gradient gathered" and event.change]


def test_the_gradient_of_a_layer_s_output_is_gathered_beside_all_that_it_keeps():
    found = step()
    kept = next(e.change for e in found if (e.name, e.layer, e.phase) == ("kept by the layer", TOP, FORWARD))
    gathered = taken(found, "output's gradient gathered", layer=TOP, phase=BACKWARD)
    assert gathered.change == kept + 2 * WHOLE + MESSAGE
    assert held(gathered, "gradients") == held(taken(found, "last matrix", layer=TOP), "gradients") - 2 * 64 * 64


def test_a_second_run_scatters_its_output_beside_the_gathered_gradient_of_the_first():
    found = step(layout={"recompute": 2})
    again = taken(found, "output of the second run before its scatter", layer=TOP, phase=BACKWARD)
    gathered = taken(found, "output's gradient gathered", layer=TOP, phase=BACKWARD)
    # The gradient whole and not twice, the output twice, and three parts more.
    assert again.change - gathered.change == WHOLE + 3 * MESSAGE


def test_gate_and_up_make_whole_gradients_of_their_input_beside_it():
    moment = taken(step(), "whole gradients of the feed-forward's input", layer=TOP, phase=BACKWARD)
    before = taken(step(), "attention's output's gradient gathered", layer=TOP, phase=BACKWARD)
    # The second norm, 6 bytes for its input and its own statistic of 4, and half a gate; three whole streams for two.
    norm = MESSAGE // 2 * (4 + 2) + 16 * 4
    assert held(moment, "activations") - held(before, "activations") == norm + WHOLE + 32 * 64 * 2


@pytest.mark.parametrize("framework", ["megatron", "nanotron"])
def test_stacks_that_gather_anew_have_none_of_it(framework):
    found = step(framework, layout={"zero_stage": 1})
    assert scattered(found) == []
