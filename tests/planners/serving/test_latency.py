"""Tests of the roofline."""

from __future__ import annotations

import dataclasses

import pytest

from planners.serving.degrees import Degrees
from planners.serving.latency import ReplicaWork, efficiencies
from planners.serving.replica import plan_replica, work_of
from planners.serving.settings import resolve_settings
from tests.planners.serving.factories import GPT2, LLAMA_7B, hardware, hybrid, model, question


def work_at(*, tensor_parallel=1, pipeline_parallel=1, spec=None, **changes) -> ReplicaWork:
    asked = question(spec, gpus=tensor_parallel * pipeline_parallel, **changes)
    settings = resolve_settings(asked)
    replica = plan_replica(
        asked, settings, Degrees(tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    )
    return work_of(asked, settings, replica)


def test_a_generated_token_costs_two_operations_a_parameter():
    # 32 x (4 x 4,096^2 + 3 x 4,096 x 11,008) + 32,000 x 4,096 = 6,607,077,376 multiplied parameters;
    # with the embedding's rows, which are looked up, 2 x N = 13.48e9.
    spec = model(LLAMA_7B)
    flops = work_at(spec=spec, max_model_len=4096).decode_flops(0)
    assert flops == 2 * 6_607_077_376
    assert flops == pytest.approx(2 * spec.parameters, rel=0.02)


def test_attention_adds_four_operations_a_head_feature_and_position():
    # 4 x 32 layers x 32 heads x 128 x 1,000 positions.
    work = work_at(spec=model(LLAMA_7B), max_model_len=4096)
    assert work.decode_flops(1000) - work.decode_flops(0) == 4 * 32 * 32 * 128 * 1000


def test_a_window_bounds_what_is_read_and_computed():
    work = work_at(spec=hybrid(full=1, sliding=1, window=100))
    full, sliding = work.cached
    assert (full.attended(1000), sliding.attended(1000), sliding.attended(50)) == (1000, 100, 50)


def test_a_prompt_needs_logits_of_its_last_token_only():
    # Two tokens attend to 1.5 positions on average.
    work = work_at()
    per_position = sum(layers.attention_flops_per_position for layers in work.cached)
    expected = 2 * work.layer_flops_per_token + 2 * 1.5 * per_position + work.head_flops_per_token
    assert work.prefill_flops(2) == expected


def test_one_requests_step_reads_the_weights_and_its_cache():
    # 15.01 GB at 3.35 TB/s x 1.2126, 1,000 tokens x 131,072 B, 32 layers x 39.42 us.
    work = work_at()
    seconds = work.read_bytes / 3.35e12 * 1.2126 + 1000 * 131_072 / 3.35e12 + 32 * 39.42e-6
    assert work.decode_step_seconds(1, 1000) == pytest.approx(seconds)


def test_a_large_batch_is_bound_by_the_matrix_units():
    work = work_at()
    step = work.decode_step_seconds(10**5, 0)
    assert step > 10**5 * work.decode_flops(0) / work.peak_flops_per_second


def test_tensor_parallelism_halves_the_reading_and_adds_all_reduces():
    one, two = work_at(), work_at(tensor_parallel=2)
    assert two.read_bytes == pytest.approx(one.read_bytes / 2, rel=0.001)
    # A ring of 2 moves 2 x 1/2 of 2 x 32 layers x 4,096 x 2 B a token.
    assert (one.all_reduce_bytes_per_token, two.all_reduce_bytes_per_token) == (0, 2 * 32 * 4096 * 2)


def test_a_pipeline_passes_its_hidden_states_on():
    one, two = work_at(), work_at(pipeline_parallel=2)
    assert two.decode_step_seconds(1, 0) > one.decode_step_seconds(1, 0)
    # Half the batch a stage: two stages serve 64 requests' cache as fast as one serves 32.
    assert two.decode_step_seconds(64, 4096) < one.decode_step_seconds(64, 4096)


def test_ranks_on_several_nodes_talk_over_the_network():
    near = work_at(tensor_parallel=8)
    far = work_at(tensor_parallel=8, hardware=hardware(8, gpus_per_node=4))
    assert (near.tensor_link_bytes_per_second, far.tensor_link_bytes_per_second) == (450e9, 50e9)
    stages = work_at(tensor_parallel=2, pipeline_parallel=4, hardware=hardware(8, gpus_per_node=4))
    assert (stages.tensor_link_bytes_per_second, stages.stage_link_bytes_per_second) == (450e9, 50e9)


def test_the_first_token_waits_behind_others():
    work = work_at()
    alone, among = work.prefill_seconds(1024, running=1), work.prefill_seconds(1024, running=64)
    compute = work.prefill_compute_seconds(1024) / 0.45
    assert alone == pytest.approx(0.03765 + compute)
    assert among - alone == pytest.approx(0.488 * compute * 63 / 64)


def test_a_slow_link_is_never_slower_than_its_own_rate():
    gpu = dataclasses.replace(hardware().gpu, link_bytes_per_second=32e9)
    work = work_at(tensor_parallel=2, hardware=hardware(2, gpu=gpu))
    compute = work.prefill_compute_seconds(1024) / 0.45
    assert work.prefill_seconds(1024, running=1) == pytest.approx(0.03765 + compute + work.all_reduce_seconds(1024))


def test_fp8_weights_read_faster_and_multiply_faster():
    half, whole = work_at(weights="fp8"), work_at()
    assert half.peak_flops_per_second == pytest.approx(2 * whole.peak_flops_per_second, rel=0.001)
    assert half.decode_step_seconds(1, 1000) < whole.decode_step_seconds(1, 1000)


def test_prefilling_others_costs_less_than_their_time_alone():
    work = work_at()
    assert work.interference_seconds(1024) == pytest.approx(
        efficiencies().prefill_compute * work.prefill_compute_seconds(1024)
    )


def test_a_tied_gpt2_has_work_for_its_head():
    work = work_at(spec=model(GPT2), max_model_len=1024)
    assert work.head_flops_per_token == 2 * 768 * 50257
