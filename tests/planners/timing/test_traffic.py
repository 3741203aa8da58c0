"""Traffic of a layer that is computed again."""

from __future__ import annotations

import pytest

from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE
from plimsoll.planners.questions import Recompute
from plimsoll.planners.timing.collectives import all_reduce_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.traffic import (
    Groups,
    tensor_parallel_message_bytes,
    tensor_parallel_seconds_per_layer,
)
from tests.planners.factories import hardware, llama
from tests.planners.training_cases import job, one_layout, step


@pytest.mark.parametrize(
    ("recompute", "full_layers", "modules", "times"),
    [
        (NONE, ALL_LAYERS, (), 4),
        (FULL, ALL_LAYERS, (), 6),
        # Eight of 32 layers have both of their forward all-reduces again.
        (FULL, 8, (), 4 + 2 / 4),
        (FULL, 0, (), 4),
        (SELECTIVE, ALL_LAYERS, ("layernorm",), 4),
        (SELECTIVE, ALL_LAYERS, ("mlp",), 5),
    ],
)
def test_what_is_computed_again_is_reduced_again(recompute, full_layers, modules, times):
    asked = {} if not modules else {"recompute": Recompute(mode="selective", modules=modules)}
    own = job("megatron", **asked)
    layouts = one_layout(tensor_parallel=2, recompute=recompute, full_layers=full_layers)
    groups = Groups(layouts, own, hardware(8), load_efficiency("megatron"))
    seconds = tensor_parallel_seconds_per_layer(layouts, own, groups).item()
    one = all_reduce_seconds(tensor_parallel_message_bytes(layouts, own), groups.tensor).item()
    assert seconds == pytest.approx(times * one, rel=1e-12)


def test_the_stage_with_a_further_head_sets_the_pace_that_is_told():
    # Llama 3 8B: one layer for multi-token prediction on the last of three stages, no traffic but sends.
    asked = {"model": llama(num_hidden_layers=16), "gpus": 3, "global_batch_size": 96, "multi_token_prediction": 1}
    found = step("megatron", layout={"pipeline_parallel": 3}, **asked)
    slowest = max(stage.micro_batch_seconds for stage in found.stages)
    assert found.stages[-1].micro_batch_seconds == slowest
    assert found.parts.forward + found.parts.backward == pytest.approx(96 * slowest, rel=1e-9)
