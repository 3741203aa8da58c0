"""Traffic of a layer that is computed again."""

from __future__ import annotations

import numpy as np
import pytest

from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE
from plimsoll.planners.questions import Recompute
from plimsoll.planners.timing.collectives import all_reduce_seconds, all_to_all_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.traffic import (
    Groups,
    context_seconds_per_layer,
    ring_hops,
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


@pytest.mark.parametrize(("ranks", "queries"), [(8, 8_388_608), (4, 16_777_216)])
@pytest.mark.parametrize(("recompute", "times"), [(NONE, 2), (FULL, 3)])
def test_ranks_of_a_sequence_exchange_queries_keys_values_and_output_once_a_pass(recompute, times, ranks, queries):
    # Llama 3 8B: 1,024 or 2,048 tokens x 32 heads x 128 features x 2 bytes of queries and as much of output, a quarter
    # of that of keys and of values. Four ranks of a node keep a quarter of each; the ring of two hides behind
    # attention, and four ranks have none.
    own, efficiency = job("megatron"), load_efficiency("megatron")
    layouts = one_layout(context_parallel=ranks, context_all_to_all=4, recompute=recompute)
    machines = hardware(8)
    found = context_seconds_per_layer(layouts, own, Groups(layouts, own, machines, efficiency), np.array([1.0])).item()
    rate = machines.gpu.link_bytes_per_second * efficiency.gpu.link_fraction
    each = 4 * efficiency.common.launch_seconds + 0.75 * 2.5 * queries / rate
    assert found == pytest.approx(times * each, rel=1e-12)


def test_the_ring_between_groups_that_exchange_heads_has_as_many_hops_fewer():
    layouts = one_layout(context_parallel=8, context_all_to_all=4)
    assert ring_hops(layouts).tolist() == [1]
    assert ring_hops(one_layout(context_parallel=8)).tolist() == [7]
    assert ring_hops(one_layout(context_parallel=8, context_all_to_all=8)).tolist() == [0]


def test_between_nodes_an_exchange_of_heads_takes_each_rank_s_own_card():
    # Eight ranks of four nodes: a quarter of the message stays in the node, the rank's own eighth with it.
    machines, efficiency = hardware(32, gpus_per_node=2), load_efficiency("megatron")
    sent = np.array([8e9])
    found = all_to_all_seconds(sent, np.array([8]), np.array([1]), machines, efficiency).item()
    rate = machines.gpu.nic_bytes_per_second * efficiency.gpu.network_fraction * efficiency.stack.network_fraction
    assert found == pytest.approx(efficiency.common.launch_seconds + 0.75 * 8e9 / rate, rel=1e-12)


def test_the_stage_with_a_further_head_sets_the_pace_that_is_told():
    # Llama 3 8B: one layer for multi-token prediction on the last of three stages, no traffic but sends.
    asked = {"model": llama(num_hidden_layers=16), "gpus": 3, "global_batch_size": 96, "multi_token_prediction": 1}
    found = step("megatron", layout={"pipeline_parallel": 3}, **asked)
    slowest = max(stage.micro_batch_seconds for stage in found.stages)
    assert found.stages[-1].micro_batch_seconds == slowest
    assert found.parts.forward + found.parts.backward == pytest.approx(96 * slowest, rel=1e-9)
