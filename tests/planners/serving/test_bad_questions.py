"""Questions that make no sense: refused with the field, and with what is allowed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import RopeScaling
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.settings.settings import resolve_settings
from tests.planners.serving.factories import GPT2, MIXTRAL, model, question


@pytest.mark.parametrize(
    ("changes", "pointer", "told"),
    [
        # 32 heads over 3 or 64 ranks.
        ({"layout": {"tensor_parallel": 3}, "gpus": 3}, "/layout/tensor_parallel", "32 attention heads"),
        ({"layout": {"tensor_parallel": 64}, "gpus": 64}, "/layout/tensor_parallel", "32 attention heads"),
        ({"max_model_len": 131073}, "/serving/max_model_len", "1 to 131072"),
        ({"gpu_memory_utilization": 1.01}, "/serving/gpu_memory_utilization", "at most 1"),
        ({"gpu_memory_utilization": 0.0}, "/serving/gpu_memory_utilization", "above 0"),
        ({"kv_cache": "nvfp4"}, "/serving/kv_cache", "bf16, fp16, fp8"),
        ({"kv_cache": "int8", "engine": "sglang", "engine_version": None}, "/serving/kv_cache", "bf16, fp16, fp8"),
        ({"engine_version": "0.99"}, "/serving/engine_version", "0.8 to 0.33. The nearest is 0.33."),
        ({"engine_version": "v0.6.3.post1"}, "/serving/engine_version", "The nearest is 0.8."),
        ({"engine": "sglang", "engine_version": "0.5.2"}, "/serving/engine_version", "The nearest is 0.5.4."),
        ({"engine": "tgi"}, "/serving/engine", "vllm, sglang"),
        ({"block_size": 7}, "/serving/block_size", "1, 8, 16"),
        ({"weights": "int3"}, "/serving/weights", "bf16"),
    ],
)
def test_the_field_and_the_allowed_values_are_told(changes: dict[str, Any], pointer: str, told: str):
    with pytest.raises(PlimsollError) as refused:
        plan_serving(question(**changes))
    assert refused.value.pointer == pointer
    assert told in refused.value.detail


@pytest.mark.parametrize(
    ("gpu", "engine", "is_planned"),
    [
        ("h100-sxm-80gb", "vllm", False),
        ("rtx-5090-32gb", "vllm", False),  # compute capability 12.0
        ("rtx-5090-32gb", "tensorrt-llm", False),
        ("b200-sxm-180gb", "vllm", True),
        ("rtx-5090-32gb", "sglang", True),
    ],
)
def test_an_nvfp4_cache_is_planned_where_the_engine_has_kernels_for_it(gpu: str, engine: str, is_planned: bool):
    card = Hardware(gpu=catalogue().gpu(gpu), gpus=GpuCount(minimum=1, maximum=1), gpus_per_node=8)
    asked = dataclasses.replace(question(kv_cache="nvfp4", engine=engine, engine_version=None), hardware=card)
    if is_planned:
        assert resolve_settings(asked).kv.name == "nvfp4"
        return
    with pytest.raises(InvalidQuestion, match=r"Blackwell cards with NVLink.*allowed are .*fp8") as refused:
        resolve_settings(asked)
    assert refused.value.pointer == "/serving/kv_cache"


def test_a_context_beyond_the_limit_is_planned_where_rope_scaling_is_stated():
    stretched = model(rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 131072})
    plan = plan_serving(question(stretched, max_model_len=200_000)).plan
    assert plan.settings.max_model_len == 200_000
    assert plan.kv.longest_context_tokens == 262_144


YARN = RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=131072)


def test_a_context_beyond_the_limit_is_planned_where_the_question_stretches_it():
    plan = plan_serving(question(rope_scaling=YARN, max_model_len=200_000)).plan
    assert plan.settings.max_model_len == 200_000
    assert plan.settings.rope_scaling == YARN
    assert resolve_settings(question(rope_scaling=YARN, max_model_len=None)).max_model_len == 4 * 131072


@pytest.mark.parametrize(("length", "is_planned"), [(4 * 131072, True), (4 * 131072 + 1, False)])
def test_a_stretched_context_has_its_limit_too(length: int, is_planned: bool):
    asked = question(rope_scaling=YARN, max_model_len=length)
    if is_planned:
        assert resolve_settings(asked).max_model_len == length
        return
    with pytest.raises(InvalidQuestion, match="524288 positions") as refused:
        resolve_settings(asked)
    assert refused.value.pointer == "/serving/max_model_len"


def test_yarn_stretches_the_models_own_positions_unless_told_others():
    plan = plan_serving(question(rope_scaling=RopeScaling(rope_type="yarn", factor=2.0), max_model_len=150_000)).plan
    assert plan.settings.rope_scaling is not None
    assert plan.settings.rope_scaling.original_max_position_embeddings == 131072
    linear = RopeScaling(rope_type="linear", factor=2.0)
    stretched = plan_serving(question(rope_scaling=linear, max_model_len=150_000)).plan.settings.rope_scaling
    assert stretched == linear


@pytest.mark.parametrize(
    ("spec", "scaling"),
    [
        (model(GPT2), YARN),  # positions are rows of a table
        (model(), RopeScaling(rope_type="yarn", factor=2.0, original_max_position_embeddings=4096)),  # reaches less
    ],
)
def test_what_stretches_nothing_is_refused(spec: ModelSpec, scaling: RopeScaling):
    with pytest.raises(InvalidQuestion) as refused:
        resolve_settings(question(spec, rope_scaling=scaling, max_model_len=512))
    assert refused.value.pointer == "/serving/rope_scaling"


@pytest.mark.parametrize(("engine", "asked"), [("vllm", "static"), ("transformers", "paged")])
def test_a_cache_that_an_engine_lacks_is_refused(engine: str, asked: str):
    with pytest.raises(InvalidQuestion) as refused:
        resolve_settings(question(engine=engine, engine_version=None, cache_implementation=asked))
    assert refused.value.pointer == "/serving/cache_implementation"


@pytest.mark.parametrize(
    ("engine", "spec", "asked"),
    [
        ("tensorrt-llm", model(), "CUTLASS"),  # has no experts
        ("tensorrt-llm", model(MIXTRAL), "TRTLLM"),  # runs on Blackwell, and this is an H100
        ("tensorrt-llm", model(MIXTRAL), "marlin"),
        ("vllm", model(MIXTRAL), "CUTLASS"),  # chooses by itself
    ],
)
def test_a_backend_of_experts_that_an_engine_lacks_is_refused(engine: str, spec: ModelSpec, asked: str):
    with pytest.raises(InvalidQuestion) as refused:
        resolve_settings(question(spec, engine=engine, engine_version=None, expert_backend=asked))
    assert refused.value.pointer == "/serving/expert_backend"


def test_a_plan_says_what_its_experts_are_computed_with():
    asked = question(model(MIXTRAL), engine="tensorrt-llm", engine_version=None, gpus=8)
    told = dataclasses.replace(asked, expert_backend="triton")
    assumed, named = plan_serving(asked), plan_serving(told)
    assert (assumed.plan.settings.expert_backend, named.plan.settings.expert_backend) == ("CUTLASS", "TRITON")
    assert any(note.startswith("expert_backend CUTLASS was assumed") for note in assumed.assumptions)
    assert not any("expert_backend" in note for note in named.assumptions)
    assert plan_serving(question(gpus=8)).plan.settings.expert_backend is None


def test_transformers_cache_grows_unless_it_is_asked_to_be_static():
    asked = question(engine="transformers", engine_version=None, concurrency=1)
    dynamic = plan_serving(asked).plan
    static = plan_serving(dataclasses.replace(asked, cache_implementation="static")).plan
    assert (dynamic.settings.cache_implementation, static.settings.cache_implementation) == ("dynamic", "static")
    # 8,192 tokens of which the traffic's 2,048 are filled.
    assert dynamic.kv.requests_held == pytest.approx(4 * static.kv.requests_held, rel=0.1)
    assert static.kv.last_block_waste_fraction == 0.75


@pytest.mark.parametrize(("version", "is_planned"), [("0.10", False), ("0.11", True)])
def test_decode_context_parallelism_came_with_0_11(version: str, is_planned: bool):
    asked = question(engine_version=version, layout={"tensor_parallel": 16, "decode_context_parallel": 2})
    if is_planned:
        assert resolve_settings(asked).profile.divides_contexts
        return
    with pytest.raises(ImpossibleLayout, match=r"0\.10 has no decode_context_parallel") as refused:
        resolve_settings(asked)
    assert refused.value.pointer == "/layout/decode_context_parallel"
