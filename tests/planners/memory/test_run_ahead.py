from dataclasses import replace

import pytest

from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.peak import peak_bytes
from plimsoll.planners.memory.run_ahead import run_ahead_bytes
from tests.planners.factories import llama
from tests.planners.training_cases import job, memory, one_layout

# 64 tokens of 32 features and 4 bytes are 8192 bytes a layer; two ranks gather half, four three quarters.
MODEL = llama(hidden_size=32, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=16, vocab_size=128)
HALF, THREE_QUARTERS = 4096, 6144


def held(framework: str = "nanotron", batch: int = 64, **degrees: int) -> list[float]:
    asked = job(framework, model=MODEL, sequence_length=64, global_batch_size=batch)
    layout = one_layout(sequence_parallel=1, **degrees)
    rows = all_stages(layout, asked)
    return run_ahead_bytes(layout, rows, asked).ravel().tolist()


def test_without_a_pipeline_every_layer_s_gathered_inputs_pile_up_once():
    assert held(tensor_parallel=2) == [16 * HALF]


def test_a_pipeline_piles_up_all_micro_batches_in_flight_but_two():
    # A quarter of all products is four layers' and a little of the head's, so that the first stage takes five: 5, 4, 4
    # and 3 layers, of which 4, 3, 2 and 1 micro-batches are in flight.
    assert held(tensor_parallel=4, pipeline_parallel=4) == [2 * 5 * THREE_QUARTERS, 4 * THREE_QUARTERS, 0.0, 0.0]
    assert held(tensor_parallel=4, pipeline_parallel=2) == [0.0, 0.0]


def test_no_more_piles_up_than_there_are_micro_batches():
    # One more than two, of the first stage's five layers.
    assert held(batch=3, tensor_parallel=4, pipeline_parallel=4)[0] == 5 * THREE_QUARTERS


def test_nothing_is_gathered_by_a_single_rank():
    assert held(pipeline_parallel=4) == [0.0] * 4


@pytest.mark.parametrize(("ranks", "data", "piles"), [(16, 1, True), (32, 1, False), (16, 31, True), (16, 32, False)])
def test_hosts_of_wide_groups_and_of_512_gpus_do_not_run_ahead(ranks: int, data: int, piles: bool):
    assert (held(tensor_parallel=ranks, data_parallel=data)[0] > 0) is piles


def test_stacks_where_it_was_not_looked_for_hold_nothing():
    assert held("megatron", tensor_parallel=2) == [0.0]


def test_what_piles_up_is_reserved_and_not_allocated():
    found = memory("nanotron", model=MODEL, sequence_length=64, layout={"tensor_parallel": 2, "sequence_parallel": 1})
    # 1.02 times what is allocated, 300 MB besides, and half of 16 layers' inputs.
    assert found.items.fragmentation == pytest.approx(found.allocated_bytes * 0.02 + 300_000_000 + 16 * HALF, abs=2)


def test_an_allocator_that_runs_short_takes_it_back():
    layout = one_layout(tensor_parallel=2, sequence_parallel=1)
    roomy = job("nanotron", model=MODEL, sequence_length=64)
    peak = int(peak_bytes(layout, roomy)[0])
    for limit, taken_back in ((peak, 0), (peak - 1, 16 * HALF)):
        assert peak_bytes(layout, replace(roomy, limit_bytes=limit))[0] == peak - taken_back
