"""Which expert and context parallelism is traced."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import MIXED_PRECISIONS
from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.jobs.states import is_fully_sharded
from plimsoll.service.worker.stacks.found import traced_stacks

# The ring cuts each rank's tokens into two halves, to balance a causal mask (torch, `context_parallel`).
RING_HALVES = 2


def _deals_experts_otherwise(asked: Asked) -> bool:
    job, stack = asked.job, asked.stack
    if job.expert_parallel == 1 or (job.has_experts and stack.groups_experts):
        return False
    is_plain = job.shard_group == job.data_parallel and job.context_parallel == job.tensor_parallel == 1
    whole_groups = job.data_parallel % job.expert_parallel == 0
    is_dealt = job.has_experts and is_fully_sharded(job, stack) and stack.deals_experts
    return not (is_dealt and is_plain and whole_groups)


def _experts(_asked: Asked) -> str:
    (stack,) = traced_stacks(lambda stack: stack.deals_experts)
    return f"Expert parallelism is traced as {stack.program} does it, over full sharding's data-parallel ranks alone."


EXPERTS_ARE_DEALT_OVER_SHARDS = Rule(broken=_deals_experts_otherwise, pointer="/layout/expert_parallel", words=_experts)
RULES_OF_EXPERTS = (EXPERTS_ARE_DEALT_OVER_SHARDS,)


def _attends_otherwise(asked: Asked) -> bool:
    job, stack = asked.job, asked.stack
    if job.context_parallel == 1:
        return False
    is_ring = (is_fully_sharded(job, stack) or stack.has_fused_kernels) and job.attention == "flash"
    has_kernel = job.precision in (*MIXED_PRECISIONS, "bf16")
    is_even = job.sequence_length % (RING_HALVES * job.context_parallel * job.tensor_parallel) == 0
    return not (is_ring and has_kernel and is_even) or job.recompute == "selective"


def _ring(_asked: Asked) -> str:
    programs = ["FSDP2", *(stack.program for stack in traced_stacks(lambda stack: stack.has_fused_kernels))]
    return (
        f"Context parallelism is traced as a ring of flash attention under {' or '.join(programs)}, over equal halves "
        "of a sequence, without selective recomputation."
    )


SEQUENCES_GO_ROUND_A_RING = Rule(broken=_attends_otherwise, pointer="/layout/context_parallel", words=_ring)
RULES_OF_CONTEXT = (SEQUENCES_GO_ROUND_A_RING,)
