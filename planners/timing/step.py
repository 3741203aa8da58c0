"""One optimizer step: computation, what communication stays exposed, bubble, optimizer, offload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.hardware import Hardware
from planners.layout.candidates import ALL_LAYERS, FULL, SELECTIVE, Candidates, FloatArray
from planners.memory.holdings import shard_ranks
from planners.memory.job import Job
from planners.plans import Step, StepParts
from planners.timing.collectives import send_seconds
from planners.timing.compute import layer_seconds
from planners.timing.efficiency import Efficiency
from planners.timing.traffic import (
    Groups,
    context_seconds_per_layer,
    data_parallel_seconds,
    rank_groups,
    stage_parameters,
    tensor_parallel_message_bytes,
    tensor_parallel_seconds_per_layer,
)

# The host's optimizer reads and writes fp32 master weights and two moments and reads the gradient: 7 x 4 bytes.
HOST_OPTIMIZER_BYTES = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The exposed seconds of a step, by what they are spent on, one entry a layout."""

    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray
    tensor_parallel: FloatArray
    pipeline_bubble: FloatArray
    data_parallel: FloatArray
    optimizer: FloatArray
    offload: FloatArray

    @property
    def total(self) -> FloatArray:
        """Return the step's seconds."""
        result: FloatArray = (
            self.forward
            + self.backward
            + self.recompute
            + self.tensor_parallel
            + self.pipeline_bubble
            + self.data_parallel
            + self.optimizer
            + self.offload
        )
        return result


def bubble_fraction(pipeline_parallel: float, micro_batches: float, virtual_pipeline: float = 1) -> float:
    """Return the idle part of a step: (p − 1)/(v·m + p − 1).

    Source: Narayanan et al. 2021, section 2.2, arXiv:2104.04473; Huang et al.
    2019 for v = 1, arXiv:1811.06965.
    """
    return (pipeline_parallel - 1) / (virtual_pipeline * micro_batches + pipeline_parallel - 1)


def step_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> StepSeconds:
    """Return the parts of a step for every layout.

    The slowest stage sets the pace: one more layer, or the head. Data-parallel
    traffic hides behind the computation of the micro-batches it belongs to, up
    to the overlap fraction; tensor-parallel traffic hides behind nothing.
    """
    groups = rank_groups(layouts, job, hardware, efficiency)
    forward, backward, recompute, attention = _stage_compute(layouts, job, hardware, efficiency)
    micro_batches = layouts.micro_batches(job.global_batch_size).astype(np.float64)
    layers = np.ceil(job.model.num_layers / layouts.pipeline_parallel)
    exchange = layers * (
        tensor_parallel_seconds_per_layer(layouts, job, groups)
        + context_seconds_per_layer(layouts, job, groups, attention)
    )
    one_micro_batch = forward + backward + recompute + exchange
    fill = (layouts.pipeline_parallel - 1) / layouts.virtual_pipeline * one_micro_batch
    compute = micro_batches * (forward + backward + recompute)
    return StepSeconds(
        forward=micro_batches * forward,
        backward=micro_batches * backward,
        recompute=micro_batches * recompute,
        tensor_parallel=micro_batches * exchange,
        pipeline_bubble=fill + _boundary_seconds(layouts, job, groups),
        data_parallel=_exposed_data_parallel(layouts, job, groups, efficiency, compute, backward),
        optimizer=_optimizer_seconds(layouts, job, hardware, efficiency),
        offload=_offload_seconds(layouts, job, hardware, efficiency),
    )


def step_of(layouts: Candidates, index: int, job: Job, hardware: Hardware, efficiency: Efficiency) -> Step:
    """Return one layout's step as clients receive it.

    The rate counts the model's own operations only, three times the forward
    pass under a causal mask; operations done again are not counted.
    """
    seconds = step_seconds(layouts.take([index]), job, hardware, efficiency)
    parts = StepParts(
        forward=float(seconds.forward[0]),
        backward=float(seconds.backward[0]),
        recompute=float(seconds.recompute[0]),
        tensor_parallel=float(seconds.tensor_parallel[0]),
        pipeline_bubble=float(seconds.pipeline_bubble[0]),
        data_parallel=float(seconds.data_parallel[0]),
        optimizer=float(seconds.optimizer[0]),
        offload=float(seconds.offload[0]),
    )
    total = parts.total_seconds
    tokens = job.global_batch_size * job.sequence_length
    gpus = int(layouts.gpus[index])
    rate = train_flops_per_token(job) * tokens / total / gpus
    return Step(
        seconds=total,
        low_seconds=total * efficiency.low,
        high_seconds=total * efficiency.high,
        parts=parts,
        tokens_per_second=tokens / total,
        tflops_per_gpu=rate / 1e12,
        model_flops_utilization=rate / hardware.gpu.peak_flops_per_second[job.precision.compute_format],
    )


def train_flops_per_token(job: Job) -> float:
    """Return forward and backward operations of a token: three forward passes, two where the base is frozen.

    For a dense model this is 6·N with the head and without the embedding, plus
    the attention's own (Kaplan et al. 2020, section 2.1, arXiv:2001.08361).
    """
    passes = 3.0 if job.method == "full" else 2.0
    return passes * job.model.forward_flops_per_token((job.sequence_length + 1) / 2)


def _stage_compute(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return forward, backward and recompute of one micro-batch on the slowest stage, and one layer's attention."""
    head = layer_seconds(job.head, layouts, job, hardware, efficiency)
    forward = backward = attention = selective = np.zeros(len(layouts))
    for part in job.layers:
        share = part.block.repeats / job.model.num_layers
        seconds = layer_seconds(part, layouts, job, hardware, efficiency)
        forward = forward + share * seconds.forward
        backward = backward + share * seconds.backward
        attention = attention + share * seconds.attention
        selective = selective + share * seconds.selective_recompute
    pipeline = layouts.pipeline_parallel
    most, fewest = np.ceil(job.model.num_layers / pipeline), job.model.num_layers // pipeline
    recomputed = np.where(layouts.full_layers == ALL_LAYERS, most, np.minimum(layouts.full_layers, most))
    recompute = np.select(
        [layouts.recompute == FULL, layouts.recompute == SELECTIVE], [recomputed * forward, most * selective], 0.0
    )
    return (
        np.maximum(most * forward, fewest * forward + head.forward),
        np.maximum(most * backward, fewest * backward + head.backward),
        recompute,
        attention,
    )


def _boundary_seconds(layouts: Candidates, job: Job, groups: Groups) -> FloatArray:
    """Return the sends of the pipeline's filling and draining, which nothing hides."""
    division = np.where(layouts.sequence_parallel, layouts.tensor_parallel, 1)
    one = send_seconds(tensor_parallel_message_bytes(layouts, job) / division, groups.pipeline)
    result: FloatArray = 2.0 * (layouts.pipeline_parallel - 1) * one
    return result


def _exposed_data_parallel(
    layouts: Candidates,
    job: Job,
    groups: Groups,
    efficiency: Efficiency,
    compute: FloatArray,
    last_backward: FloatArray,
) -> FloatArray:
    """Return what of the traffic computation does not hide.

    Traffic of every micro-batch has all computation to hide behind, traffic of
    the last one only its backward pass.
    """
    seconds = data_parallel_seconds(layouts, job, groups)
    hideable = np.where(layouts.zero_stage >= 2, compute, last_backward)
    hidden = np.minimum(seconds * efficiency.overlap_fraction, hideable * efficiency.overlap_fraction)
    result: FloatArray = seconds - hidden
    return result


def _optimizer_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return the optimizer's reading and writing of its states on the device."""
    states, kind = job.states, job.optimizer
    moment = states.moment if kind.moment_bytes is None else kind.moment_bytes
    per_element = (
        states.gradient + states.accumulator + 2 * states.master + 2 * states.parameter + 2 * kind.moments * moment
    )
    divided = np.where(layouts.zero_stage >= job.profile.sharding.optimizer_from, shard_ranks(layouts, job), 1)
    moved = stage_parameters(layouts, job) / divided * per_element
    rate = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
    return np.where(layouts.offload == 0, moved / rate, 0.0)


def _offload_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return gradients down, the optimizer on the host, and weights up, one after another."""
    divided = np.where(layouts.zero_stage >= job.profile.sharding.optimizer_from, shard_ranks(layouts, job), 1)
    elements = stage_parameters(layouts, job) / divided
    pcie = hardware.gpu.pcie_bytes_per_second * efficiency.pcie_fraction
    size = job.precision.compute_bytes
    there_and_back = 2.0 * elements * size / pcie
    on_host = elements * HOST_OPTIMIZER_BYTES / efficiency.host_memory_bytes_per_second
    weights_up = 2.0 * layouts.micro_batches(job.global_batch_size) * elements * size / pcie
    offloaded = np.where(layouts.offload >= 1, there_and_back + on_host, 0.0)
    paged = 2.0 * job.optimizer.moments * elements * (job.optimizer.moment_bytes or job.states.moment) / pcie
    if job.optimizer.paged_to_host:
        offloaded = np.where(layouts.offload >= 1, offloaded, paged)
    return offloaded + np.where(layouts.offload == 2, weights_up, 0.0)
