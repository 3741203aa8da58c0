"""Seconds of optimizer states and parameters between the host and NVMe drives."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.memory.nvme import PARAMETERS_IN_HOST
from plimsoll.planners.timing.efficiency import Efficiency


def nvme_seconds(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, elements: FloatArray
) -> FloatArray:
    """Return a step's reads and writes; `elements` are the parameters that a rank updates.

    Every state is read and written once. Parameters beyond what the host keeps are
    read for the forward and the backward pass of every micro-batch and written
    once. Nothing overlaps: `pipeline_read` and `pipeline_write` are off by default.
    """
    if job.offload_target != "nvme":
        return np.zeros(1)
    states = job.states
    moment = states.moment if job.optimizer.moment_bytes is None else job.optimizer.moment_bytes
    each = states.master + job.host_gradient_bytes + job.optimizer.moments * moment
    moved = np.where(layouts.offload >= 1, 2.0 * elements * each, 0.0)
    passes = 2.0 * layouts.micro_batches(job.global_batch_size) + 1.0
    beyond = np.maximum(elements - PARAMETERS_IN_HOST, 0.0) * job.precision.compute_bytes
    moved = moved + np.where(layouts.offload == 2, passes * beyond, 0.0)
    rate = hardware.nvme_bytes_per_second or efficiency.common.nvme_bytes_per_second
    result: FloatArray = moved / rate
    return result
