"""Seconds of activations on their way to the host and back."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.layouts.stages import deciding_stages
from plimsoll.planners.memory.activation_offload import SYNCHRONOUS, micro_batch_offload_bytes
from plimsoll.planners.stacks.records import BY_MODULES
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
    rate = _host_bytes_per_second(hardware, efficiency)
    one_way = layouts.micro_batches(job.global_batch_size) * micro_batch_offload_bytes(layouts, job) / rate
    if job.profile.can.activation_offload != SYNCHRONOUS:
        exposed: FloatArray = np.maximum(one_way - forward, 0.0) + np.maximum(one_way - backward, 0.0)
        return np.where(layouts.activation_offload, exposed, 0.0)
    return 2.0 * one_way


def waiting_bytes(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, *, forward: FloatArray
) -> FloatArray:
    """Return what waits on the device for its copy at most, beside the activations that are counted there.

    Megatron-Core lets go of a tensor at once, but records it on the copies' stream, so that the allocator keeps its
    memory until that has caught up, and no forward pass waits for copies. A stage falls behind by what each of its
    micro-batches in flight sends beyond what a forward pass leaves time for; `forward` is the step's seconds.
    Source: Megatron-Core 0.16.1, pipeline_parallel/fine_grained_activation_offload.py, `bulk_offload_group`,
    `on_group_commit_forward`.
    """
    goes_by_parts = job.profile.can.activation_offload == BY_MODULES and job.offload_layers is None
    if not goes_by_parts or not layouts.activation_offload.any():
        return np.zeros(1)
    copied = _host_bytes_per_second(hardware, efficiency) * forward / layouts.micro_batches(job.global_batch_size)
    behind = np.maximum(micro_batch_offload_bytes(layouts, job) - copied, 0.0)
    in_flight = deciding_stages(layouts, job).in_flight.max(axis=0)
    return np.where(layouts.activation_offload, behind * in_flight, 0.0)


def _host_bytes_per_second(hardware: Hardware, efficiency: Efficiency) -> float:
    return hardware.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
