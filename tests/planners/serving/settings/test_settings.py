"""Tests of what a serving question may say."""

from __future__ import annotations

import dataclasses
import math

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.questions import LengthDistribution, ServiceLevel, ServingLayoutRequest, Speculation
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import H100, hardware, model, question


def refused(pointer, **changes):
    with pytest.raises(InvalidQuestion) as caught:
        resolve_settings(question(**changes))
    assert caught.value.pointer == pointer
    return caught.value.detail


def test_engine_settings_default_to_the_versions_own():
    settings = resolve_settings(question())
    assert settings.gpu_memory_utilization == 0.90
    assert settings.block_size == 16
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (8192, 1024)


def test_the_context_defaults_to_the_models_own_and_says_so():
    settings = resolve_settings(question(max_model_len=None))
    assert settings.max_model_len == 131072
    assert any("131072" in note for note in settings.assumptions)


@pytest.mark.parametrize("length", [1024, 131072])
def test_a_context_up_to_the_models_limit_is_taken(length):
    assert resolve_settings(question(max_model_len=length)).max_model_len == length


@pytest.mark.parametrize("length", [131073, 0, -1, 2**40, 1])
def test_a_context_beyond_the_models_limit_is_refused(length):
    refused("/serving/max_model_len", max_model_len=length)


def test_a_model_without_a_limit_needs_a_context():
    spec = dataclasses.replace(model(), max_position_embeddings=None)
    assert "give max_model_len" in refused("/serving/max_model_len", spec=spec, max_model_len=None)


@pytest.mark.parametrize("share", [0.01, 0.5, 1])
def test_utilization_is_a_share(share):
    assert resolve_settings(question(gpu_memory_utilization=share)).gpu_memory_utilization == share


@pytest.mark.parametrize("share", [0, -0.1, 1.0001, math.inf, math.nan])
def test_utilization_outside_the_share_is_refused(share):
    refused("/serving/gpu_memory_utilization", gpu_memory_utilization=share)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "bf17"),
        ("kv_cache", "int4"),
        ("block_size", 15),
        ("block_size", 0),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", -1),
        ("max_num_seqs", 2**40),
        ("input_tokens", 0),
        ("output_tokens", -5),
        ("concurrency", 0),
        ("concurrency", 10**9),
        ("engine", "llama.cpp"),
        ("engine_version", "0.1"),
        ("objective", "speed"),
    ],
)
def test_values_that_make_no_sense_point_at_their_field(field, value):
    refused(f"/serving/{field}", **{field: value})


def test_the_batch_holds_at_least_a_token_of_each_sequence():
    refused("/serving/max_num_batched_tokens", max_num_batched_tokens=100, max_num_seqs=101)
    assert resolve_settings(question(max_num_batched_tokens=100)).max_num_seqs == 100


def test_traffic_is_assumed_as_one_thousand_in_and_out_and_named():
    settings = resolve_settings(question())
    assert (settings.input_tokens, settings.output_tokens) == (1024, 1024)
    assert {"input_tokens 1024, assumed.", "output_tokens 1024, assumed."} <= set(settings.assumptions)


@pytest.mark.parametrize(("context", "traffic"), [(2048, (1024, 1024)), (2047, (1023, 1024)), (2, (1, 1))])
def test_assumed_traffic_never_exceeds_the_context(context, traffic):
    settings = resolve_settings(question(max_model_len=context))
    assert (settings.input_tokens, settings.output_tokens) == traffic


@pytest.mark.parametrize(
    ("given", "traffic"), [({"input_tokens": 8000}, (8000, 192)), ({"output_tokens": 8000}, (192, 8000))]
)
def test_the_absent_half_of_the_traffic_takes_what_is_left(given, traffic):
    settings = resolve_settings(question(**given))
    assert (settings.input_tokens, settings.output_tokens) == traffic


def test_a_request_longer_than_the_context_is_refused():
    refused("/serving/input_tokens", input_tokens=8000, output_tokens=193)
    refused("/serving/output_tokens", output_tokens=8192)
    assert resolve_settings(question(input_tokens=8000, output_tokens=192)).request_tokens == 8192


@pytest.mark.parametrize("field", ["attention_data_parallel", "expert_parallel", "decode_context_parallel"])
def test_a_degree_is_at_least_one(field):
    refused(f"/layout/{field}", layout={field: 0})
    assert resolve_settings(question(layout={field: 1}))


@pytest.mark.parametrize("field", ["ttft_seconds", "tpot_seconds"])
@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_a_service_level_is_above_zero(field, seconds):
    refused(f"/serving/slo/{field}", slo=ServiceLevel(**{field: seconds}))


def test_an_empty_layout_and_service_level_ask_for_nothing():
    assert resolve_settings(question(slo=ServiceLevel(), layout={})).concurrency is None
    assert ServingLayoutRequest().tensor_parallel is None


def test_a_card_without_bf16_is_refused_bf16_weights_and_takes_fp16():
    rates = {"fp32": 8.1e12, "fp16": 65.0e12}
    turing = hardware(gpu=dataclasses.replace(H100, name="NVIDIA T4 16 GB", peak_flops_per_second=rates))
    assert "Ask for weights fp16" in refused("/serving/weights", hardware=turing)
    assert "Ask for kv_cache fp16" in refused("/serving/kv_cache", hardware=turing, weights="fp16")
    assert resolve_settings(question(hardware=turing, weights="fp16", kv_cache="fp16")).weights.name == "fp16"


@pytest.mark.parametrize("rate", [0, -1, math.nan])
def test_a_request_rate_is_above_zero(rate):
    refused("/serving/requests_per_second", requests_per_second=rate)


def test_a_closed_and_an_open_loop_are_not_asked_for_at_once():
    refused("/serving/requests_per_second", requests_per_second=1, concurrency=8)


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_hit_rate_is_a_share(rate):
    refused("/serving/prefix_cache_hit_rate", prefix_cache_hit_rate=rate)


@pytest.mark.parametrize(
    ("field", "draft"),
    [
        ("tokens", Speculation(tokens=0, acceptance_rate=0.5)),
        ("acceptance_rate", Speculation(tokens=1, acceptance_rate=2)),
    ],
)
def test_speculation_drafts_something_and_accepts_a_share(field, draft):
    refused(f"/serving/speculative/{field}", speculative=draft)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_length_is_given_once(side):
    refused(f"/serving/{side}_length", **{f"{side}_tokens": 5, f"{side}_length": LengthDistribution(mean=5)})


def test_distributions_give_the_mean_request_and_every_length():
    # 8 samples of prompts x 8 of answers, none longer than the context.
    length = LengthDistribution(p50=100, p99=6000)
    settings = resolve_settings(question(input_length=length, output_length=LengthDistribution(mean=500)))
    assert settings.output_tokens == 500
    assert len(settings.sequence_tokens) == 64
    assert max(settings.sequence_tokens) <= settings.max_model_len


def whole_prompts(**asked):
    return question(engine="tensorrt-llm", engine_version=None, output_tokens=64, max_model_len=16384, **asked)


def test_a_batch_has_room_for_a_whole_prompt_beside_the_running_requests():
    # 8,192 + 100 requests + 64 to spare, in 64s.
    settings = resolve_settings(whole_prompts(input_tokens=8192, concurrency=100))
    assert settings.max_num_batched_tokens == 8384
    assert any("max_num_batched_tokens 8384, not 8192" in note for note in settings.assumptions)
    assert resolve_settings(whole_prompts(input_tokens=1024)).max_num_batched_tokens == 8192


def test_whole_prompts_keep_others_from_running():
    # 8,190 of 8,192 leave 2 tokens, those of two other requests.
    asked = whole_prompts(input_tokens=8190, max_num_batched_tokens=8192, concurrency=16)
    assert resolve_settings(asked).most_running == 3
    answer = plan_serving(asked)
    assert answer.meets is False
    assert {"serving.max_num_batched_tokens": 8320} in [each.change for each in answer.advice if each.meets]


def test_prompts_are_cut_where_an_engine_is_told_so():
    told = whole_prompts(input_tokens=9000, max_num_batched_tokens=2048, chunked_prefill=True)
    settings = resolve_settings(told)
    assert (settings.chunks_prompts, settings.most_running) == (True, 2048)
    assert resolve_settings(whole_prompts(input_tokens=9000)).chunks_prompts is False


def test_an_engine_told_to_cut_no_prompts_has_batches_of_the_longest_request():
    # config/scheduler.py of vLLM, verify_max_model_len.
    settings = resolve_settings(question(max_model_len=8192, chunked_prefill=False))
    assert settings.chunks_prompts is False
    assert settings.max_num_batched_tokens >= 8192
    told = refused("/serving/max_num_batched_tokens", max_num_batched_tokens=4096, chunked_prefill=False)
    assert "must be at least max_model_len (8192)" in told


def test_chunked_prefill_is_not_planned_off_where_the_engine_is_not_known_without():
    with pytest.raises(NotYetAvailable) as caught:
        resolve_settings(question(engine="sglang", engine_version=None, chunked_prefill=False))
    assert caught.value.pointer == "/serving/chunked_prefill"


def test_a_prompt_longer_than_a_batch_is_refused_where_none_is_cut():
    with pytest.raises(InvalidQuestion, match="computes prompts whole") as caught:
        resolve_settings(whole_prompts(input_tokens=9000, max_num_batched_tokens=8192))
    assert caught.value.pointer == "/serving/max_num_batched_tokens"
    assert resolve_settings(question(input_tokens=7000, output_tokens=64, max_num_batched_tokens=2048)).most_running
