"""Which jobs accelerate itself wraps in a trace: those that only divide data, which is all that it plans."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.states import FULL_SHARDING_STAGES


def is_wrapped_by_accelerate(job: TraceJob) -> bool:
    """Return whether a rank's model is whole but for what FSDP2 or DistributedDataParallel divides."""
    degrees = (job.tensor_parallel, job.pipeline_parallel, job.context_parallel, job.expert_parallel)
    return degrees == (1, 1, 1, 1)


def is_launched_on_many(job: TraceJob) -> bool:
    """Return whether accelerate is launched as several processes: full sharding is on one too."""
    return job.world_size > 1 or job.zero_stage in FULL_SHARDING_STAGES


def recomputes_every_layer(job: TraceJob) -> bool:
    """Return whether accelerate's own recomputation is asked for, which is of all layers."""
    return job.recompute == "full" and job.recompute_layers is None and job.recompute_every is None
