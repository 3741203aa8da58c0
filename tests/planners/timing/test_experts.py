"""Mixtures of experts in time: short products, tokens sent to experts, experts' share of a rank."""

import dataclasses

import numpy as np
import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import Network
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE
from plimsoll.planners.timing.communication import communication_of
from plimsoll.planners.timing.compute import layer_seconds
from plimsoll.planners.timing.experts import (
    exchanges_per_layer,
    expert_seconds_per_layer,
    expert_token_bytes,
    exposed_exchange_seconds,
    tensor_traffic_multiple,
)
from plimsoll.planners.timing.rank_parameters import stage_parameters
from plimsoll.planners.timing.step import step_seconds
from tests.planners.factories import hardware
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job, one_layout

# 8 experts of 3 x 4096 x 14336 in each of 32 layers, two for each token.
MIXTRAL = describe_config(
    {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    name="mixtral",
)
EXPERT = 3 * 4096 * 14336


def asked():
    return job("megatron", model=MIXTRAL, sequence_length=4096, global_batch_size=16)


def test_expert_parallelism_divides_the_experts_only():
    whole, divided = (stage_parameters(one_layout(expert_parallel=ranks), asked())[0] for ranks in (1, 8))
    # 7/8 of 8 experts in 32 layers go.
    assert whole - divided == pytest.approx(32 * 8 * EXPERT * 7 / 8)


def test_experts_on_tensor_ranks_are_divided_by_no_more_than_those():
    # Eight experts on two replicas of four tensor ranks: one whole expert a layer on each of the eight.
    whole, divided = (
        stage_parameters(one_layout(data_parallel=2, tensor_parallel=4, expert_parallel=ranks), asked())[0]
        for ranks in (1, 8)
    )
    assert whole - divided == pytest.approx(32 * (8 / 4 - 1) * EXPERT)


@pytest.mark.parametrize(("adds", "gradient_bytes"), [(True, 2 * 4), (False, 4)])
def test_a_rank_moves_the_weights_of_every_expert_it_has(adds, gradient_bytes):
    efficiency = plain(expert_weight_multiple=3.0, adds_gradients_in_products=adds)
    part = asked().layers[0]
    all_eight, one = (
        layer_seconds(part, one_layout(expert_parallel=ranks), asked(), hardware(8), efficiency) for ranks in (1, 8)
    )
    # Seven experts fewer: 16-bit weights in both passes, Megatron's fp32 gradient written or added to, three times the
    # least, at half of 3.35 TB/s.
    both = all_eight.forward[0] + all_eight.backward[0] - one.forward[0] - one.backward[0]
    assert both == pytest.approx(7 * EXPERT * 3 * (2 * 2 + gradient_bytes) / (0.5 * 3.35e12))


def test_within_a_node_tokens_go_to_each_of_their_experts():
    seconds = expert_seconds_per_layer(one_layout(expert_parallel=8), asked(), hardware(8), plain())[0]
    # Four times two copies of 4,096 x 4,096 x 2 bytes, 7/8 of them to other ranks, at half of 450 GB/s.
    assert seconds == pytest.approx(4 * 2 * 4096 * 4096 * 2 * 7 / 8 / 225e9)


def test_between_nodes_a_token_goes_once_to_each_node():
    seconds = expert_seconds_per_layer(one_layout(expert_parallel=16), asked(), hardware(16), plain())[0]
    # Two nodes: the other one has at least one of two experts with 1 - 1/4; half of 50 GB/s.
    assert seconds == pytest.approx(4 * 4096 * 4096 * 2 * 0.75 / 25e9)


@pytest.mark.parametrize(("gpus_per_pod", "slower"), [(16, 1.0), (8, 7.0)])
def test_an_exchange_that_leaves_its_pod_shares_what_is_left_there(gpus_per_pod, slower):
    pods = hardware(16, network=Network(gpus_per_pod=gpus_per_pod, oversubscription=7.0))
    plain_network, seconds = (
        expert_seconds_per_layer(one_layout(expert_parallel=16), asked(), cards, plain())[0]
        for cards in (hardware(16), pods)
    )
    assert seconds == pytest.approx(slower * plain_network)


def test_an_exchange_is_as_fast_as_the_stack_s_network():
    slow = plain(network_fraction=0.5)
    seconds = expert_seconds_per_layer(one_layout(expert_parallel=16), asked(), hardware(16), slow)[0]
    # As between nodes above, at half of that rate.
    assert seconds == pytest.approx(4 * 4096 * 4096 * 2 * 0.75 / 12.5e9)


def test_tensor_parallel_ranks_share_the_tokens():
    assert expert_token_bytes(one_layout(tensor_parallel=4), asked())[0] == 4096 * 4096 * 2 / 4


def test_experts_have_a_line_in_the_communication_table():
    rows = communication_of(one_layout(data_parallel=8, expert_parallel=8), 0, asked(), hardware(8), plain())
    row = next(row for row in rows if row.group == "expert")
    # 16 sequences over 8 ranks: two micro-batches of 32 layers, four exchanges each.
    assert (row.operation, row.calls_per_step) == ("all_to_all", 4 * 32 * 2)
    assert row.bytes_per_layer == 4 * 2 * 4096 * 4096 * 2


def test_dense_models_send_nothing_to_experts():
    efficiency = plain()
    one = one_layout(expert_parallel=1)
    assert expert_seconds_per_layer(one, job("megatron"), hardware(8), efficiency) == pytest.approx(np.zeros(1))


def test_full_recompute_dispatches_and_combines_again():
    none, half, full = (
        exchanges_per_layer(one_layout(recompute=mode, full_layers=layers), asked())[0]
        for mode, layers in ((NONE, ALL_LAYERS), (FULL, 16), (FULL, ALL_LAYERS))
    )
    assert (none, half, full) == (4, 5, 6)


def test_the_busiest_rank_sets_the_exchange_and_the_products():
    layout, calm = one_layout(data_parallel=8, expert_parallel=8), asked()
    busy = dataclasses.replace(calm, expert_imbalance=1.5)
    seconds = [expert_seconds_per_layer(layout, one, hardware(8), plain())[0] for one in (calm, busy)]
    assert seconds[1] == pytest.approx(1.5 * seconds[0])
    forward = [layer_seconds(one.layers[0], layout, one, hardware(8), plain()).forward[0] for one in (calm, busy)]
    # Half as many again of two experts' 2 x 3 x 4096 x 14336 operations for 4,096 tokens, at half of 989.4 TFLOP/s.
    assert forward[1] - forward[0] == pytest.approx(0.5 * 4096 * 2 * 2 * EXPERT / (0.5 * 989.4e12))


def test_the_exchange_has_a_part_of_its_own():
    layout = one_layout(data_parallel=8, expert_parallel=8)
    parts = step_seconds(layout, asked(), hardware(8), plain())
    # 16 sequences over 8 ranks: two micro-batches of 32 layers.
    exchange = expert_seconds_per_layer(layout, asked(), hardware(8), plain())[0]
    assert parts.expert_parallel[0] == pytest.approx(2 * 32 * exchange)
    assert parts.tensor_parallel[0] == 0


@pytest.mark.parametrize(("degrees", "multiple"), [
    ({"data_parallel": 1, "expert_parallel": 1}, 1.0),
    # Cut experts gather both copies of each token: (1 + 2) / 2 of a dense layer's traffic.
    ({"data_parallel": 2, "expert_parallel": 2}, 1.5),
    # Whole experts leave the attention's half.
    ({"data_parallel": 2, "expert_parallel": 4}, 0.5),
])  # fmt: skip
def test_tensor_ranks_exchange_what_experts_leave_them(degrees, multiple):
    layout = one_layout(tensor_parallel=2, sequence_parallel=True, **degrees)
    assert tensor_traffic_multiple(asked().layers[0], layout, asked())[0] == pytest.approx(multiple)


def exposed(exchange, computation, *, cost=0.2, **layout):
    efficiency = plain(expert_overlap_cost_fraction=cost)
    one = one_layout(expert_parallel=8, data_parallel=8, **layout)
    found = exposed_exchange_seconds(np.array([exchange]), np.array([computation]), one, asked(), efficiency)
    return found[0]


def test_an_exchange_that_nothing_hides_is_exposed_whole():
    assert exposed(4.0, 10.0) == 4.0


def test_what_hides_an_exchange_runs_slower_meanwhile():
    # 16 sequences on 8 replicas are two micro-batches, of which one forward and one backward pass are a pair: half of
    # the exchange is beside computation, which loses a fifth of it.
    assert exposed(4.0, 10.0, expert_overlap=True) == pytest.approx(0.5 * 4.0 + 0.5 * 0.2 * 4.0)


def test_an_exchange_longer_than_the_computation_beside_it_stays_exposed_in_part():
    # 4 s of exchange beside 1 s of computation leave 3 s.
    assert exposed(4.0, 1.0, expert_overlap=True) == pytest.approx(0.5 * 4.0 + 0.5 * 3.0)
