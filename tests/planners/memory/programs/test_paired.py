"""Mixtures on Megatron whose exchange with experts is hidden: a Mixtral of eight layers, 64 features and 32 tokens.

Plans are held to Megatron-Core's own schedule in tests/service/worker/stacks/megatron/core/test_rank.py.
"""

import pytest

from plimsoll.planners.memory.steps.step import FORWARD
from tests.planners.factories import small_mixtral
from tests.planners.training_cases import events, held, memory, taken

TOKENS, MESSAGE = 32, 2 * 64 * 32
MODEL = small_mixtral(num_hidden_layers=8)
PAIR = "layers of two micro-batches"
DEALT = {"data_parallel": 2, "expert_parallel": 2, "zero_stage": 1, "expert_overlap": True}


def step(*, micro_batches=8, stage=0, **layout):
    asked = {"model": MODEL, "sequence_length": TOKENS, "global_batch_size": 2 * micro_batches}
    return events("megatron", stage=stage, layout=DEALT | layout, **asked)


def peak(**layout):
    asked = {"model": MODEL, "sequence_length": 2048, "global_batch_size": 16}
    return memory("megatron", layout=DEALT | layout, **asked).allocated_bytes


def test_a_layer_of_each_micro_batch_is_there_as_both_are_gone_through():
    # Beside what the next one keeps there are four times its tokens for two experts each, and two gradients.
    found = step()
    assert (
        taken(found, PAIR, layer=7).change > taken(found, "kept by the layer", layer=0).change + (4 * 2 + 2) * MESSAGE
    )


def test_without_a_second_micro_batch_there_is_no_pair():
    assert PAIR not in {event.name for event in step(micro_batches=1)}


def test_layers_that_are_done_are_remembered_by_their_inputs_and_gradients():
    # In the middle of a pair (8 - 1) // 2 of them, two messages each.
    assert taken(step(), "micro-batches that wait", phase=FORWARD).change == 3 * 2 * MESSAGE


def test_a_pipeline_holds_the_output_s_graph_beside_a_pair():
    # The gradient received, the residual and its gradient, and each token's two experts' outputs.
    name = "gradient received, and what the output's graph holds"
    found = step(pipeline_parallel=2, virtual_pipeline=2)
    assert taken(found, name, layer=3).change == 3 * MESSAGE + 2 * MESSAGE
    assert name not in {event.name for event in step()}


def test_the_embedding_is_differentiated_as_the_next_micro_batch_has_been_through_all_layers():
    found = step()
    layers = sum(event.change for event in found if event.name == "kept by the layer" and event.change > 0)
    assert held(taken(found, "embedding's gradient"), "activations") > layers


@pytest.mark.parametrize("layout", [{}, {"pipeline_parallel": 2, "virtual_pipeline": 2}])
def test_passes_side_by_side_need_more(layout):
    assert peak(**layout) > peak(**layout, expert_overlap=False)
