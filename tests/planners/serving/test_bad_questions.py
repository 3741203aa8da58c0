"""Questions that make no sense: refused with the field, and with what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from planners.errors import PlimsollError
from planners.inference import plan_serving
from tests.planners.serving.factories import model, question


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
        ({"engine_version": "0.99"}, "/serving/engine_version", "0.8 to 0.33"),
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


def test_a_context_beyond_the_limit_is_planned_where_rope_scaling_is_stated():
    stretched = model(rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 131072})
    plan = plan_serving(question(stretched, max_model_len=200_000)).plan
    assert plan.settings.max_model_len == 200_000
    assert plan.kv.longest_context_tokens == 262_144
