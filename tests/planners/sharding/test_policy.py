"""What each stack is called, and how it divides experts unless told."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.sharding import POLICIES, ShardLayout, framework_policy, sharding_policy
from plimsoll.planners.stacks.profile import stack_names


def test_every_policy_has_its_source():
    assert all(policy.source for policy in POLICIES.values())
    assert sharding_policy("vllm") is POLICIES["vllm"]


def test_an_unknown_policy_lists_the_near_ones():
    with pytest.raises(UnknownName, match="megatron"):
        sharding_policy("megatron-lm")


def test_every_profiled_framework_has_a_policy():
    assert {framework_policy(name, 0).name for name in stack_names()} <= set(POLICIES)


@pytest.mark.parametrize(("stage", "name"), [(0, "deepspeed-zero2"), (2, "deepspeed-zero2"), (3, "deepspeed-zero3")])
def test_deepspeed_cuts_tensors_by_themselves_from_stage_3(stage: int, name: str):
    assert framework_policy("deepspeed", stage).name == name


def test_an_unknown_framework_is_refused():
    with pytest.raises(UnknownName) as caught:
        framework_policy("caffe", 0)
    assert caught.value.pointer == "/framework"


@pytest.mark.parametrize(
    ("policy", "expert_parallel", "given", "degree"),
    [
        ("megatron", 1, None, 4),
        ("megatron", 2, None, 4),
        ("megatron", 2, 1, 1),
        ("torchtitan", 1, None, 4),
        ("torchtitan", 2, None, 1),
        # vLLM divides every expert over all tensor and data ranks, or deals whole ones to them.
        ("vllm", 1, None, 8),
        ("vllm", 8, None, 1),
    ],
)
def test_experts_are_divided_as_the_stack_does_unless_told(policy, expert_parallel, given, degree):
    layout = ShardLayout(tensor_parallel=4, replicas=2, expert_parallel=expert_parallel, expert_tensor_parallel=given)
    assert POLICIES[policy].expert_mesh(layout).tensor == degree


def test_given_stages_are_taken_before_the_stacks_own():
    policy = POLICIES["vllm"]
    assert policy.layers_of_stages(ShardLayout(pipeline_parallel=2), 5) == (3, 2)
    assert policy.layers_of_stages(ShardLayout(pipeline_parallel=2, stage_layers=(1, 4)), 5) == (1, 4)
