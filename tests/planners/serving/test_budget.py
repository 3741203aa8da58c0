"""Tests of each engine's rule for what its cache gets.

Logs: vllm-project/vllm issue 21348 (SGLang, Qwen3-235B-A22B-FP8 on 4 H100, fraction
0.93: 16.46 GiB); a published TensorRT-LLM log of DeepSeek-R1 on 8 H200 (peak 91.46 GiB,
fraction 0.85: 41.11 GiB).
"""

from __future__ import annotations

import pytest

from planners.catalogue import catalogue
from planners.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from planners.huggingface import describe_config
from planners.inference import plan_serving
from planners.serving.budget import requested_bytes, static_fraction
from planners.serving.degrees import Degrees
from planners.serving.settings import resolve_settings
from tests.planners.serving.factories import GIB, H100, hardware, hybrid, model, question


def engine_question(engine, spec=None, **changes):
    return question(spec, engine=engine, engine_version=None, **changes)


def fraction(degrees=None, total_gib=79.19, **changes):
    asked = engine_question("sglang", **changes)
    return static_fraction(resolve_settings(asked), degrees or Degrees(), round(total_gib * GIB))


def test_vllm_claims_a_share_of_the_whole_card():
    assert requested_bytes(1000, 0.9) == 900


def test_sglang_derives_its_fraction_from_the_card():
    # H100: 512 + 8,192 x 1.5 + 256 x 2 + 128 = 13,440 MiB of 81,091.
    assert fraction() == round(1 - 13440 / 81090.56, 3)


def test_sglang_reserves_more_for_many_ranks_and_for_attention_ranks():
    # 8 ranks: 512 + 12,288 + 512 x 2 + 8 x 128 = 14,848; attention ranks: 512 x 8 x 4.5 MiB more.
    assert fraction(Degrees(tensor_parallel=8)) == round(1 - 14848 / 81090.56, 3)
    attention = Degrees(attention_data_parallel=8)
    assert fraction(attention) == round(1 - (14848 + 18432) / 81090.56, 3)


def test_sglang_keeps_ten_gib_of_a_large_card():
    # 512 + 2,048 x 1.5 + 512 + 128 = 4,224 MiB would do.
    assert fraction(max_num_batched_tokens=2048) == round(1 - 10240 / 81090.56, 3)


def test_a_card_that_sglangs_reserve_exceeds_is_refused():
    with pytest.raises(InvalidQuestion, match="would reserve 13,440 MiB") as caught:
        fraction(total_gib=8)
    assert caught.value.pointer == "/serving/gpu_memory_utilization"


def test_a_fraction_that_is_given_is_kept():
    assert fraction(gpu_memory_utilization=0.7) == 0.7


def test_sglangs_cache_of_qwen3_235b_is_within_its_band():
    spec = describe_config(catalogue().model("Qwen/Qwen3-235B-A22B").config, name="Qwen3-235B")
    layout = {"tensor_parallel": 4, "pipeline_parallel": 1, "expert_parallel": 1}
    asked = engine_question("sglang", spec, gpus=4, layout=layout, weights="fp8", gpu_memory_utilization=0.93)
    kv = plan_serving(asked).plan.kv
    assert kv.available_low_bytes / GIB <= 16.46 <= kv.available_high_bytes / GIB
    assert kv.tokens == pytest.approx(367404, rel=0.02)


def test_tensorrt_llms_cache_of_deepseek_r1_is_within_its_band():
    spec = describe_config(catalogue().model("deepseek-ai/DeepSeek-R1").config, name="DeepSeek-R1")
    asked = engine_question(
        "tensorrt-llm",
        spec,
        gpus=8,
        hardware=hardware(8, gpu=catalogue().gpu("h200-sxm-141gb")),
        layout={"tensor_parallel": 8, "pipeline_parallel": 1, "expert_parallel": 1},
        weights="fp8",
        kv_cache="fp8",
        gpu_memory_utilization=0.85,
        max_num_batched_tokens=16384,
        max_num_seqs=256,
    )
    kv = plan_serving(asked).plan.kv
    assert kv.bytes_per_token == 35136
    assert kv.available_low_bytes / GIB <= 41.11 <= kv.available_high_bytes / GIB


def test_tensorrt_llm_gives_its_cache_nine_tenths_of_what_is_free():
    memory = plan_serving(engine_question("tensorrt-llm")).plan.memory
    items = memory.items
    free = H100.memory_bytes - items.weights - items.activations - items.runtime
    assert memory.stages[0].available_bytes == int(free * 0.9)


def test_transformers_may_fill_the_card():
    answer = plan_serving(engine_question("transformers", concurrency=8))
    items = answer.plan.memory.items
    left = H100.memory_bytes - items.weights - items.activations - items.runtime
    assert answer.plan.memory.stages[0].available_bytes == left
    assert answer.plan.performance is None
    assert answer.meets_concurrency
    assert any("speed of transformers" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [({"objective": "latency"}, "/objective")],
)
def test_what_takes_a_speed_is_refused_where_none_is_described(changes, pointer):
    with pytest.raises(NotYetAvailable) as caught:
        plan_serving(engine_question("transformers", **changes))
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "transformers"])
def test_windows_are_not_described_but_for_vllm(engine):
    with pytest.raises(NotYetAvailable, match="sliding_window"):
        plan_serving(engine_question(engine, hybrid(full=2, sliding=2, window=64)))


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("sglang", {"tensor_parallel": 2, "decode_context_parallel": 2}),
        ("transformers", {"tensor_parallel": 1, "pipeline_parallel": 2, "data_parallel": 1}),
    ],
)
def test_a_degree_the_engine_lacks_is_refused(engine, layout):
    with pytest.raises(ImpossibleLayout, match=f"{engine} has no"):
        plan_serving(engine_question(engine, model(), gpus=2, layout=layout))
