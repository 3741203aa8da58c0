"""A Mixtral on Megatron of four layers, 64 features and 32 tokens, of which each layer remembers its latest scores."""

import pytest

from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, SELECTIVE
from plimsoll.planners.questions import Recompute
from tests.planners.factories import small_llama, small_mixtral
from tests.planners.training_cases import events

MESSAGE, NAME = 2 * 64 * 32, "inputs that remembered scores hold, and their gradients"
MODEL = small_mixtral(num_hidden_layers=4)
RECOMPUTED = {"recompute": FULL, "full_layers": ALL_LAYERS}


def remembered(model=MODEL, framework="megatron", modules=(), **layout):
    """Return what is remembered after each layer's backward pass, in messages between layers."""
    asked = {"model": model, "sequence_length": 32}
    if modules:
        asked["recompute"] = Recompute(mode="selective", modules=modules)
        layout["recompute"] = SELECTIVE
    found = events(framework, layout=layout, **asked)
    total, after = 0, []
    for event in found:
        if event.name == NAME:
            total += event.change
            after.append(total / MESSAGE)
    return [most for most in after if most]


def test_a_layer_that_was_recomputed_leaves_its_input_and_its_gradient():
    # The highest layer's gradient is the next one's own: 1, then two of each layer below.
    assert remembered(**RECOMPUTED)[-1] == 2 * 4 - 1


def test_a_mixture_that_is_recomputed_by_itself_leaves_its_own():
    assert remembered(modules=("moe",))[-1] == 2 * 4


@pytest.mark.parametrize(("micro_batches", "layers"), [(8, 1), (2, 0)])
def test_an_interleaved_last_stage_remembers_its_other_chunk_at_the_loss_once_there_is_a_second_round(
    micro_batches, layers
):
    # Of four layers each of two stages has one in each of two chunks.
    found = events(
        "megatron",
        stage=1,
        model=MODEL,
        sequence_length=32,
        global_batch_size=micro_batches,
        layout=RECOMPUTED | {"pipeline_parallel": 2, "virtual_pipeline": 2},
    )
    held = [event.change / MESSAGE for event in found if event.name == "inputs that scores of other chunks hold"]
    assert max(held, default=0) == 2 * layers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"modules": ("moe_act",)},
        {"model": small_llama(num_hidden_layers=4), **RECOMPUTED},
        {"framework": "reference", **RECOMPUTED},
    ],
)
def test_nothing_is_left_of_other_layers_nor_under_other_stacks(changes):
    assert remembered(**changes) == []
