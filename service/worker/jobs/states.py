"""How a job's parameters and optimizer states are held: as FSDP2's shards, or whole with an fp32 copy or without."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import MIXED_PRECISIONS, TraceJob
from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.jobs.stack import Replication, Stack

FULL_SHARDING_STAGES = (2, 3)  # parameters, or gradients at least, are FSDP2's


def is_fully_sharded(job: TraceJob, stack: Stack) -> bool:
    """Return whether FSDP2 holds the parameters, rather than each rank a whole copy."""
    return job.zero_stage in FULL_SHARDING_STAGES and not stack.has_own_engine


def keeps_master_weights(job: TraceJob, stack: Stack) -> bool:
    """Return whether the optimizer keeps an fp32 copy of 16-bit parameters."""
    return (
        job.precision in MIXED_PRECISIONS
        and not is_fully_sharded(job, stack)
        and stack.replication is Replication.MASTER_WEIGHTS
    )


def has_own_experts(job: TraceJob, stack: Stack) -> bool:
    """Return whether a mixture's tokens are sent and worked on as the stack does it, rather than transformers."""
    return job.expert_parallel > 1 or (stack.groups_experts and job.has_experts)


def traces_own_code(job: TraceJob, stack: Stack) -> bool:
    """Return whether nothing of ours stands in a trace for what the stack would run.

    Kernels that update in place, and fused ones, are stood in for by shape.
    """
    if stack.has_liger_kernels or job.fused_cross_entropy or job.optimizer in KERNEL_RULES:
        return False
    if stack.runs_own_model(job):
        return not stack.has_fused_kernels
    is_own = stack.has_own_engine or stack.runs_own_wrapper(job)
    return runs_own_code(job, stack) or (is_own and not job.trains_adapters)


def runs_own_code(job: TraceJob, stack: Stack) -> bool:
    """Return whether torch's and transformers' code is all that the stack would run, as on a device."""
    is_plain = stack.is_plain_on_one_rank and not stack.has_liger_kernels
    return is_plain and job.world_size == 1 and not job.trains_adapters
