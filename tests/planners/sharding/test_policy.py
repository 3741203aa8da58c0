"""How stacks divide experts and layers unless told, and that alike policies are one."""

from __future__ import annotations

import pytest

from plimsoll.planners.sharding import ExpertTensorDegree, KeyValueHeads, ShardLayout, sharding_policy
from plimsoll.planners.sharding.cuts import cut_of_kind
from tests.planners.sharding.policies import POLICIES


def test_policies_that_are_alike_are_one_and_what_is_kept_of_it_is_found_by_all():
    def flat(tensor_multiple: int):
        return sharding_policy(
            key_value_heads=KeyValueHeads.REFUSED,
            cut=cut_of_kind("flat_buffers", tensor_multiple=tensor_multiple),
            expert_tensor_degree=ExpertTensorDegree.TENSOR,
        )

    assert flat(2) is flat(2)
    assert flat(2) is not flat(4)


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
