"""Tests of each engine's rule for what its cache gets.

Logs: vllm-project/vllm issue 21348 (SGLang, Qwen3-235B-A22B-FP8 on 4 H100, fraction
0.93: 16.46 GiB); a published TensorRT-LLM log of DeepSeek-R1 on 8 H200 (peak 91.46 GiB,
fraction 0.85: 41.11 GiB).
"""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, NotYetAvailable
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.engines.vllm.budget import requested_bytes
from plimsoll.planners.serving.planning import plan_serving
from tests.planners.serving.factories import H100, hardware, model, question


def engine_question(engine, spec=None, **changes):
    return question(spec, engine=engine, engine_version=None, **changes)


def test_vllm_claims_a_share_of_the_whole_card():
    assert requested_bytes(1000, 0.9) == 900


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


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("sglang", {"tensor_parallel": 2, "decode_context_parallel": 2}),
        ("transformers", {"tensor_parallel": 1, "pipeline_parallel": 2, "data_parallel": 1}),
    ],
)
def test_a_degree_the_engine_lacks_is_refused(engine, layout):
    with pytest.raises(ImpossibleLayout, match=f"{engine}.* has no"):
        plan_serving(engine_question(engine, model(), gpus=2, layout=layout))
