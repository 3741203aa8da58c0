"""Tests of the degrees of one replica."""

from __future__ import annotations

import pytest

from plimsoll.planners.serving.degrees import Degrees, degrees_obstacle, has_experts
from plimsoll.planners.serving.releases.profile import engine_profile
from tests.planners.serving.factories import MIXTRAL, model

MIXTURE = model(MIXTRAL)
VLLM = engine_profile("vllm", None)


def test_a_replica_has_attention_data_times_tensor_times_pipeline_gpus():
    degrees = Degrees(tensor_parallel=2, pipeline_parallel=3, attention_data_parallel=4, expert_parallel=8)
    assert (degrees.gpus, degrees.ranks_per_stage, degrees.expert_tensor_parallel) == (24, 8, 1)


def test_a_mixture_has_experts_and_a_dense_model_none():
    assert has_experts(MIXTURE)
    assert not has_experts(model())


@pytest.mark.parametrize("field", ["attention_data_parallel", "expert_parallel"])
def test_a_model_without_experts_has_none_to_divide(field):
    obstacle = degrees_obstacle(model(), VLLM, Degrees(tensor_parallel=2, **{field: 2}))
    assert obstacle.pointer == f"/layout/{field}"
    assert "no experts" in str(obstacle)


@pytest.mark.parametrize(("experts", "engine", "allowed"), [
    (1, "vllm", True), (2, "vllm", False), (4, "vllm", True), (2, "sglang", True), (3, "sglang", False),
])  # fmt: skip
def test_vllm_deals_experts_to_all_ranks_or_none_and_others_to_a_divisor(experts, engine, allowed):
    degrees = Degrees(tensor_parallel=4, expert_parallel=experts)
    assert (degrees_obstacle(MIXTURE, engine_profile(engine, None), degrees) is None) is allowed


@pytest.mark.parametrize(
    ("tensor", "context", "allowed"), [(8, 2, False), (16, 2, True), (16, 4, False), (16, 3, False)]
)
def test_a_sequence_is_shared_out_among_the_ranks_that_hold_the_same_heads(tensor, context, allowed):
    # 8 key-value heads: 16 ranks hold each twice.
    degrees = Degrees(tensor_parallel=tensor, decode_context_parallel=context)
    assert (degrees_obstacle(model(), VLLM, degrees) is None) is allowed


def test_data_parallel_ranks_that_share_experts_are_named_as_here():
    # As with 8 data-parallel ranks and experts over all of them in other programs.
    refusal = degrees_obstacle(model(MIXTRAL), engine_profile("vllm", None), Degrees(expert_parallel=8))
    assert refusal is not None
    assert "= 1, not 8. Data-parallel ranks that share the experts are attention_data_parallel" in refusal.detail
    uneven = degrees_obstacle(
        model(MIXTRAL), engine_profile("vllm", None), Degrees(tensor_parallel=8, expert_parallel=4)
    )
    assert uneven is not None
    assert "Data-parallel" not in uneven.detail
