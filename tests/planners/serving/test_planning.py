"""Tests of the serving planner's front door."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.planners.ground.units import GIB
from plimsoll.planners.questions import LengthDistribution, ServiceLevel, Speculation
from plimsoll.planners.serving.planning import plan_serving
from tests.planners.serving.factories import (
    GPT2,
    H100,
    LLAMA_70B,
    MIXTRAL,
    QWEN2_0_5B,
    hardware,
    hybrid,
    model,
    question,
)


def test_the_parts_of_every_stage_add_up_to_its_peak():
    plan = plan_serving(question(model(LLAMA_70B), gpus=8, layout={"pipeline_parallel": 4})).plan
    for stage in plan.memory.stages:
        assert stage.peak_bytes == stage.items.total_bytes
    assert plan.memory.peak_bytes == plan.memory.items.total_bytes
    assert plan.memory.margin_bytes == plan.memory.limit_bytes - plan.memory.peak_bytes


def test_the_cache_is_whole_blocks_of_what_is_available():
    # One block: 16 tokens x 128 KiB = 2 MiB.
    kv, items = plan_serving(question()).plan.kv, plan_serving(question()).plan.memory.items
    assert kv.blocks == kv.available_bytes // (2 * 2**20)
    assert items.kv_cache == kv.blocks * 2 * 2**20
    assert kv.tokens == kv.blocks * 16
    assert kv.max_concurrency == kv.blocks / 512


def test_bytes_a_token_are_the_whole_models_and_one_gpus():
    kv = plan_serving(question(gpus=4, layout={"tensor_parallel": 4, "pipeline_parallel": 1})).plan.kv
    assert (kv.bytes_per_token, kv.bytes_per_token_per_gpu) == (128 * 1024, 32 * 1024)
    assert [(group.kind, group.layers, group.bytes_per_token_per_layer, group.window) for group in kv.groups] == [
        ("full_attention", 32, 4096, None)
    ]


def test_only_layers_that_grow_count_as_bytes_a_token():
    kv = plan_serving(question(hybrid(full=4, sliding=12, window=1024))).plan.kv
    assert kv.bytes_per_token == 4 * 4096
    assert [(group.kind, group.layers, group.window) for group in kv.groups] == [
        ("full_attention", 4, None),
        ("sliding_window", 12, 1024),
    ]


def test_the_deployments_total_is_replicas_times_one():
    layout = {"tensor_parallel": 1, "pipeline_parallel": 1}
    one = plan_serving(question(gpus=1, layout=layout, concurrency=16)).plan
    four = plan_serving(question(gpus=4, layout=layout, concurrency=64)).plan
    assert four.layout.data_parallel == 4
    assert four.kv.tokens == one.kv.tokens
    assert four.performance.output_tokens_per_second == pytest.approx(4 * one.performance.output_tokens_per_second)


def test_fits_means_one_request_of_the_whole_context():
    # 443,552 tokens of cache at 0.90.
    tokens = plan_serving(question()).plan.kv.tokens
    spec = model(max_position_embeddings=10**6)
    rotary = (10**6 - 131072) * 128 * 2 // (128 * 1024) + 16
    assert plan_serving(question(spec, max_model_len=tokens - rotary)).fits
    answer = plan_serving(question(spec, max_model_len=tokens))
    assert (answer.fits, answer.verdict, answer.plan.performance) == (False, "no", None)


def test_tight_is_where_only_the_estimate_fits():
    plan = plan_serving(question(model(max_position_embeddings=10**6), max_model_len=8192)).plan
    between = (plan.kv.available_low_bytes + plan.kv.available_bytes) // 2 // (128 * 1024)
    answer = plan_serving(question(model(max_position_embeddings=10**6), max_model_len=between))
    assert (answer.fits, answer.verdict) == (True, "tight")


def test_a_claim_beyond_what_is_free_does_not_fit():
    # 0.90 x 79.19 + 0.87 GiB of graphs = 72.14 GiB; others hold 7.0 or 7.1.
    assert plan_serving(question(hardware=hardware(used_bytes=7 * GIB))).fits
    answer = plan_serving(question(hardware=hardware(used_bytes=round(7.1 * GIB))))
    assert not answer.fits
    assert "GiB are free" in answer.summary


def test_a_reserve_is_kept_free():
    assert not plan_serving(question(hardware=hardware(reserve_bytes=10 * GIB))).fits


def test_cost_needs_a_price():
    assert plan_serving(question()).plan.cost_usd_per_million_output_tokens is None
    plan = plan_serving(question(hardware=hardware(2, usd_per_gpu_hour=3.6))).plan
    # 2 GPUs at 0.001 $/s each.
    rate = plan.performance.output_tokens_per_second
    assert plan.cost_usd_per_million_output_tokens == pytest.approx(0.002 / rate * 1e6)


def test_everything_assumed_is_named():
    notes = " ".join(plan_serving(question(engine_version=None, max_model_len=None)).assumptions)
    for word in (
        "engine_version 0.33",
        "max_model_len 131072",
        "input_tokens 1024",
        "concurrency",
        "0.92",
        "block_size 16",
    ):
        assert word in notes


def test_a_card_without_bf16_or_logs_of_its_own_is_named():
    gpu = dataclasses.replace(
        H100, id="t4-16gb", name="T4", memory_bytes=round(14.74 * GIB), peak_flops_per_second={"fp16": 65e12}
    )
    asked = question(model(GPT2), max_model_len=1024, weights="int4", kv_cache="fp16", hardware=hardware(gpu=gpu))
    notes = " ".join(plan_serving(asked).assumptions)
    assert "no published rate for bf16" in notes
    assert "logs on H100" in notes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the most requests that run at once"),
        ({"objective": "latency"}, "it has the lowest latency"),
        ({"slo": ServiceLevel(tpot_seconds=0.02)}, "the most that meets the service level"),
        ({"slo": ServiceLevel(tpot_seconds=1e-9)}, "no other comes closer to it"),
    ],
)
def test_an_assumed_concurrency_gives_its_reason(changes, reason):
    assert any(note.endswith(f"assumed: {reason}.") for note in plan_serving(question(**changes)).assumptions)


def test_that_products_in_nf4_were_not_measured_is_said():
    assert not any("NF4" in note for note in plan_serving(question(weights="int4")).assumptions)
    assert any("NF4" in note for note in plan_serving(question(weights="nf4")).assumptions)


def test_alternatives_fit_and_are_not_the_plan():
    answer = plan_serving(question(gpus=8, concurrency=8))
    others = [other for other in answer.alternatives if not other.is_on_front]
    assert 1 <= len(others) <= 5
    assert all(other.verdict != "no" and other.layout != answer.plan.layout for other in answer.alternatives)


def test_the_same_question_has_the_same_answer():
    assert plan_serving(question(gpus=8)) == plan_serving(question(gpus=8))


def test_a_mixture_is_planned_with_experts_dealt_out_over_attention_ranks():
    layout = {"tensor_parallel": 1, "attention_data_parallel": 4, "expert_parallel": 4, "data_parallel": 1}
    answer = plan_serving(question(model(MIXTRAL), gpus=4, layout=layout))
    assert answer.plan.layout.gpus == 4
    assert answer.plan.layout.expert_parallel == 4
    assert "attention data parallel 4, expert parallel 4" in answer.summary
    # Each rank has a cache of its own: what one of them holds is not what the replica does.
    assert "an attention rank holds" in answer.summary


@pytest.mark.parametrize("config", [GPT2, QWEN2_0_5B])
def test_small_tied_models_are_planned(config):
    answer = plan_serving(question(model(config), max_model_len=1024))
    assert answer.fits
    assert answer.plan.performance.tpot_seconds > 0


@settings(max_examples=30, deadline=None)
@given(
    layers=st.integers(8, 64),
    hidden=st.sampled_from([2048, 4096, 8192]),
    kv_heads=st.sampled_from([8, 16]),
    version=st.sampled_from(["0.8", "0.16", "0.19", "0.21", "0.33"]),
)
def test_more_ranks_never_hold_fewer_tokens(layers, hidden, kv_heads, version):
    spec = model(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=32,
        num_key_value_heads=kv_heads,
    )
    held = [
        plan_serving(
            question(
                spec, gpus=tensor, engine_version=version, layout={"tensor_parallel": tensor, "pipeline_parallel": 1}
            )
        ).plan.kv.tokens
        for tensor in (1, 2, 4, 8)
    ]
    assert held == sorted(held)


@settings(max_examples=30, deadline=None)
@given(utilization=st.floats(0.3, 0.95), kv=st.sampled_from(["bf16", "fp8"]))
def test_the_budget_never_exceeds_the_claim(utilization, kv):
    memory = plan_serving(question(gpu_memory_utilization=utilization, kv_cache=kv)).plan.memory
    assert memory.peak_bytes - memory.items.cuda_graphs <= memory.requested_bytes
    assert not math.isnan(memory.margin_bytes)


def test_a_request_rate_is_answered_with_tails():
    answer = plan_serving(question(requests_per_second=2.0))
    performance = answer.plan.performance
    assert answer.meets_concurrency
    assert performance.requests_per_second == pytest.approx(2)
    assert performance.ttft_p99_seconds > performance.ttft_seconds
    assert performance.tpot_p99_seconds >= performance.tpot_seconds
    assert any("M/D/1" in note for note in answer.assumptions)


def test_a_rate_beyond_the_replicas_is_not_met_and_says_so():
    answer = plan_serving(question(requests_per_second=10**6))
    assert answer.meets_concurrency is False
    assert answer.plan.performance.ttft_p99_seconds is None
    assert any("faster than the replicas can answer" in note for note in answer.assumptions)


def test_long_and_short_requests_are_held_by_what_they_take_on_average():
    # All but one in a thousand prompts are of 512 tokens, answers of 512: 64 blocks of 16.
    length = LengthDistribution(lengths=(512, 7680), counts=(1, 0.001))
    short = plan_serving(question(input_length=length, output_tokens=512)).plan.kv
    assert short.requests_held == short.blocks // 64


def test_drafts_and_cached_prefixes_are_named_among_the_assumptions():
    answer = plan_serving(question(speculative=Speculation(tokens=2, acceptance_rate=0.7), prefix_cache_hit_rate=0.5))
    notes = " ".join(answer.assumptions)
    assert "one layer of the model's size" in notes
    assert "Cached prompt tokens" in notes


def test_the_bands_enclose_the_estimates():
    performance = plan_serving(question()).plan.performance
    assert performance.ttft_low_seconds < performance.ttft_seconds < performance.ttft_high_seconds
    assert performance.tpot_low_seconds < performance.tpot_seconds < performance.tpot_high_seconds


def test_the_cache_is_described_at_halves_of_the_longest_context():
    # 4,096 tokens take 256 blocks of 16, 2,048 take 128, 1,024 take 64; one block is never given away.
    kv = plan_serving(question(max_model_len=4096)).plan.kv
    assert [(context.tokens, context.requests) for context in kv.contexts] == [
        (1024, (kv.blocks - 1) // 64),
        (2048, (kv.blocks - 1) // 128),
        (4096, (kv.blocks - 1) // 256),
    ]


@pytest.mark.parametrize(("longest", "lengths"), [(2047, [2047]), (2048, [1024, 2048]), (2049, [1024, 2049])])
def test_contexts_go_down_to_a_thousand_tokens(longest: int, lengths: list[int]):
    kv = plan_serving(question(max_model_len=longest)).plan.kv
    assert [context.tokens for context in kv.contexts] == lengths


def test_no_more_than_eight_lengths_are_described():
    kv = plan_serving(question(model(max_position_embeddings=2**20), max_model_len=2**20)).plan.kv
    assert [context.tokens for context in kv.contexts] == [2**power for power in range(13, 21)]
