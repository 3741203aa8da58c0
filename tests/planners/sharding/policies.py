"""The policies that the stacks and an engine place weights by, each by a stack that has it."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.serving.weights.placement import policy_of
from plimsoll.planners.sharding import ShardingPolicy
from plimsoll.planners.stacks.profile import load_profile

POLICIES: Mapping[str, ShardingPolicy] = {
    "reference": load_profile("reference").sharding_policy(0),
    "ddp": load_profile("ddp").sharding_policy(0),
    "fsdp1": load_profile("composer").sharding_policy(3),
    "nanotron": load_profile("nanotron").sharding_policy(1),
    "fsdp2": load_profile("accelerate").sharding_policy(3),
    "torchtitan": load_profile("fsdp2").sharding_policy(3),
    "deepspeed-zero2": load_profile("deepspeed").sharding_policy(2),
    "deepspeed-zero3": load_profile("deepspeed").sharding_policy(3),
    "megatron": load_profile("megatron").sharding_policy(1),
    "vllm": policy_of("vllm"),
}
# Of several that are alike, and so one and the same, the last.
NAMES = {policy: name for name, policy in POLICIES.items()}
