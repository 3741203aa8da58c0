"""Seconds of activations on their way to the host and back."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.memory.activation_offload import SYNCHRONOUS, micro_batch_offload_bytes
from plimsoll.planners.timing.efficiency import Efficiency


def activation_offload_seconds(
    layouts: Candidates,
    job: Job,
    hardware: Hardware,
    efficiency: Efficiency,
    *,
    forward: FloatArray,
    backward: FloatArray,
) -> FloatArray:
    """Return what of a step's copies over PCIe nothing hides; `forward` and `backward` are the step's seconds.

    They go down in the forward pass and up in the backward. On a stream of their
    own (TRL, torchtune) only what is longer than the pass shows;
    torch's `save_on_cpu` (`synchronous`) copies between the operations.
    """
    if not layouts.activation_offload.any():
        return np.zeros(1)
    rate = hardware.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
    one_way = layouts.micro_batches(job.global_batch_size) * micro_batch_offload_bytes(layouts, job) / rate
    if job.profile.can.activation_offload != SYNCHRONOUS:
        exposed: FloatArray = np.maximum(one_way - forward, 0.0) + np.maximum(one_way - backward, 0.0)
        return np.where(layouts.activation_offload, exposed, 0.0)
    return 2.0 * one_way
