"""A second copy of the weights in smaller groups of ranks, from which all but the first pass of a step gathers.

DeepSpeed cuts each tensor, in the format it is multiplied in, over the `zero_hpz_partition_size` ranks of a group as it
lets go of it for the first time after an update, and throws the copy away with the next update; it lies where the
first one lies. Sources: DeepSpeed 0.19.8, runtime/zero/partition_parameters.py (`_partition_param_sec`) and stage3.py
(`invalidate_secondary_tensor`); Wang et al. 2023, "ZeRO++", arXiv:2306.10209, section 3.2.
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.memory.steps.on_rank import NO_BYTES

PARAMETERS_TOO = 2  # of what is offloaded


def secondary_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return one rank's part of the second copy, every tensor padded to equal parts of all replicas; 0 without one."""
    groups, data = layouts.secondary_shard_group, layouts.data_parallel
    if groups.max(initial=1) == 1:
        return NO_BYTES
    padded = sum(
        part.block.repeats * (-(-weight.elements // data) * data)
        for part in job.parts
        for weight in (*part.trainable, *part.frozen)
    )
    return np.where(groups > 1, job.precision.compute_bytes * padded / groups, 0.0)


def on_device(layouts: Candidates, job: Job) -> FloatArray:
    """Return what of it is on the device."""
    return _where(layouts, layouts.offload != PARAMETERS_TOO, job)


def on_device_at_loss(layouts: Candidates, job: Job) -> FloatArray:
    """Return what of it is on the device as a micro-batch's loss is known.

    In the only micro-batch of a step weights that the engine has not let go of since their first gather are missing:
    as many as it keeps gathered, the last to be used. Copies of frozen ones outlast the update.
    """
    whole = on_device(layouts, job)
    if whole is NO_BYTES or job.profile.zero is None or job.method != "full":
        return whole
    missing = job.precision.compute_bytes * job.profile.zero.max_live_elements / layouts.secondary_shard_group
    is_alone = layouts.micro_batches(job.global_batch_size) == 1
    return np.where(is_alone, np.maximum(whole - missing, 0.0), whole)


def on_host(layouts: Candidates, job: Job) -> FloatArray:
    """Return what of it is on the host, with the parameters that lie there."""
    return _where(layouts, layouts.offload == PARAMETERS_TOO, job)


def _where(layouts: Candidates, is_there: BoolArray, job: Job) -> FloatArray:
    held = secondary_bytes(layouts, job)
    return held if held is NO_BYTES else np.where(is_there, held, 0.0)
