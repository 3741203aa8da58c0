"""One optimizer step: computation, what communication stays exposed, bubble, optimizer, offload."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE, PIPEDREAM
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray, any_of
from plimsoll.planners.layouts.grid import Cells
from plimsoll.planners.memory.frozen import QUOTED_FOUR_BIT_BYTES, base_width
from plimsoll.planners.memory.secondary_shards import secondary_bytes
from plimsoll.planners.plans import Step, StepParts
from plimsoll.planners.timing.activation_traffic import activation_offload_seconds
from plimsoll.planners.timing.collectives import NO_SECONDS, send_seconds
from plimsoll.planners.timing.companions import companion_backward_seconds, companion_forward_seconds
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.matrix_update import matrix_update_seconds
from plimsoll.planners.timing.nvme import nvme_seconds
from plimsoll.planners.timing.pace import Pace, micro_batch_pace, stage_steps
from plimsoll.planners.timing.rank_parameters import frozen_parameters, updated_parameters
from plimsoll.planners.timing.stages import equal_shares
from plimsoll.planners.timing.stalls import stall_seconds
from plimsoll.planners.timing.traffic import (
    Groups,
    data_parallel_seconds,
    gathers,
    tensor_parallel_message_bytes,
    update_gather_seconds,
)
from plimsoll.planners.timing.utilization import highest_utilization

# The host's optimizer reads and writes fp32 master weights and two moments and reads the gradient: 7 x 4 bytes.
HOST_OPTIMIZER_BYTES = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The exposed seconds of a step, by what they are spent on, one entry a layout."""

    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray
    tensor_parallel: FloatArray
    context_parallel: FloatArray
    expert_parallel: FloatArray
    pipeline_bubble: FloatArray
    data_parallel: FloatArray
    optimizer: FloatArray
    offload: FloatArray

    @property
    def total(self) -> FloatArray:
        """Return the step's seconds."""
        parts = (getattr(self, name) for name in PART_NAMES)
        result: FloatArray = functools.reduce(operator.add, (part for part in parts if part is not NO_SECONDS))
        return result

    def at_cells(self, cells: Cells) -> StepSeconds:
        """Return the parts at cells of the layouts' grid, as a list."""
        return StepSeconds(**{name: cells.of(getattr(self, name)) for name in PART_NAMES})


PART_NAMES = tuple(entry.name for entry in fields(StepSeconds))


def concatenated(steps: Sequence[StepSeconds]) -> StepSeconds:
    """Return the steps of several lists of layouts, in order."""
    if len(steps) == 1:
        return steps[0]
    return StepSeconds(**{name: np.concatenate([getattr(step, name) for step in steps]) for name in PART_NAMES})


def untimed(count: int) -> StepSeconds:
    """Return so many steps that nobody timed: infinite in every part."""
    return StepSeconds(**dict.fromkeys(PART_NAMES, np.full(count, np.inf)))


def step_seconds(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, peaks: FloatArray | None = None
) -> StepSeconds:
    """Return the parts of a step for every layout.

    The slowest stage sets the pace: one more layer, or the head; each stage by
    its kernels or by its host, whichever is slower. Data-parallel traffic hides
    behind the computation of the micro-batches it belongs to, up to the overlap
    fraction. `peaks` are the layouts' peak bytes, which decide how much of a paged
    optimizer's states is evicted: none where they are not given.
    """
    groups = Groups(layouts, job, hardware, efficiency)
    pace = micro_batch_pace(layouts, job, hardware, efficiency, groups)
    micro_batches = layouts.micro_batches(job.global_batch_size).astype(np.float64)
    compute = micro_batches * (pace.forward + pace.backward + pace.recompute)

    def of_all(one: FloatArray) -> FloatArray:
        """Return what all micro-batches take."""
        return one if one is NO_SECONDS else micro_batches * one

    return StepSeconds(
        forward=micro_batches * pace.forward + companion_forward_seconds(layouts, job, hardware, efficiency),
        backward=micro_batches * pace.backward + companion_backward_seconds(layouts, job, hardware, efficiency),
        recompute=of_all(pace.recompute),
        tensor_parallel=of_all(pace.exchange),
        context_parallel=of_all(pace.context_exchange),
        expert_parallel=of_all(pace.expert_exchange),
        pipeline_bubble=_fill_seconds(layouts, job, pace) + _boundary_seconds(layouts, job, groups, efficiency),
        data_parallel=_exposed_data_parallel(layouts, job, groups, efficiency, compute, pace)
        + sum(
            _exposed_data_parallel(layouts, learning, groups, efficiency, compute, pace) for learning in _learning(job)
        ),
        optimizer=_optimizer_seconds(layouts, job, hardware, efficiency)
        + efficiency.stack.step_seconds
        + sum(_optimizer_seconds(layouts, learning, hardware, efficiency) for learning in _learning(job)),
        offload=_offload_seconds(layouts, job, hardware, efficiency)
        + _paging_seconds(layouts, job, hardware, efficiency, peaks)
        + activation_offload_seconds(
            layouts,
            job,
            hardware,
            efficiency,
            forward=micro_batches * pace.forward,
            backward=micro_batches * (pace.backward + pace.recompute),
        ),
    )


def least_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return what a step takes at the least: its passes, whatever is sharded, offloaded, computed again or sent."""
    groups = Groups(layouts, job, hardware, efficiency)
    pace = micro_batch_pace(layouts, job, hardware, efficiency, groups)
    return _passes(layouts, job, pace) + _fill_seconds(layouts, job, pace)


def least_seconds_of_any_stages(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, most_chunks: IntArray
) -> FloatArray:
    """Return the same for the best stages that a pipeline could have, in no more chunks than `most_chunks`."""
    groups = Groups(layouts, job, hardware, efficiency)
    pace = micro_batch_pace(layouts, job, hardware, efficiency, groups, equal_shares)
    fill = np.zeros(1) if job.pipeline_schedule == PIPEDREAM else pace.fill / most_chunks
    return _passes(layouts, job, pace) + fill


def least_seconds_of_any_sizes(
    smallest: Candidates,
    largest: Candidates,
    job: Job,
    hardware: Hardware,
    efficiency: Efficiency,
    most_chunks: IntArray,
    *,
    hides_exchange: bool,
    with_context_traffic: bool,
) -> FloatArray:
    """Return the same for the best micro-batches between two sizes of each mesh.

    The larger a micro-batch, the less each of its tokens takes; the smaller, the sooner a pipeline is full. With
    `hides_exchange` computation may hide the exchange with experts; what context ranks send counts only
    `with_context_traffic`.
    """
    groups = Groups(largest, job, hardware, efficiency)
    pace = micro_batch_pace(largest, job, hardware, efficiency, groups, equal_shares)
    exchange = pace.expert_exchange
    if hides_exchange:
        beside = exchange - pace.forward - pace.backward
        exchange = np.maximum(beside, efficiency.stack.expert_overlap_cost_fraction * exchange)
    context = pace.context_exchange if with_context_traffic else NO_SECONDS
    result = _passes(largest, job, replace(pace, expert_exchange=exchange, context_exchange=context))
    if job.pipeline_schedule == PIPEDREAM:
        return result
    return result + micro_batch_pace(smallest, job, hardware, efficiency, groups, equal_shares).fill / most_chunks


def _passes(layouts: Candidates, job: Job, pace: Pace) -> FloatArray:
    """Return the forward and backward passes of all micro-batches on the slowest stage."""
    parts = (pace.forward, pace.backward, pace.exchange, pace.context_exchange, pace.expert_exchange)
    one = functools.reduce(operator.add, (part for part in parts if part is not NO_SECONDS))
    result: FloatArray = layouts.micro_batches(job.global_batch_size) * one
    return result


def step_of(
    layouts: Candidates, index: int, job: Job, hardware: Hardware, efficiency: Efficiency, peak: float | None = None
) -> Step:
    """Return one layout's step as clients receive it; `peak` is its peak bytes."""
    one, peaks = layouts.take([index]), None if peak is None else np.array([peak])
    return told(step_seconds(one, job, hardware, efficiency, peaks), one, 0, job, hardware, efficiency)


def told(
    seconds: StepSeconds, layouts: Candidates, index: int, job: Job, hardware: Hardware, efficiency: Efficiency
) -> Step:
    """Return one of several timed layouts' steps as clients receive it.

    The rate counts the model's own operations only, three times the forward
    pass under a causal mask; operations done again are not counted. The upper bound
    holds the stalls that the estimate leaves out.
    """
    parts = StepParts(**{name: float(getattr(seconds, name)[index]) for name in PART_NAMES})
    total = parts.total_seconds
    tokens = job.global_batch_size * job.sequence_length
    rate = train_flops_per_token(job) * tokens / total / int(layouts.gpus[index])
    low, high = efficiency.band(experts=bool(job.model.experts_per_token))
    highest = highest_utilization(hardware.gpu.id, job)
    one = layouts.take([index])
    stalls = float(stall_seconds(one, job, efficiency)[0])
    return Step(
        seconds=total,
        low_seconds=total * low,
        high_seconds=total * high + stalls,
        parts=parts,
        tokens_per_second=tokens / total,
        tflops_per_gpu=rate / 1e12,
        model_flops_utilization=rate / hardware.gpu.peak_flops_per_second[job.precision.compute_format],
        highest_measured_utilization=None if highest is None else highest.fraction,
        timed_runs=efficiency.timed_runs,
        stages=stage_steps(one, job, hardware, efficiency, Groups(one, job, hardware, efficiency)),
    )


def train_flops_per_token(job: Job) -> float:
    """Return forward and backward operations of a token: three forward passes, two where the base is frozen.

    For a dense model this is 6·N with the head and without the embedding, plus
    the attention's own (Kaplan et al. 2020, section 2.1, arXiv:2001.08361).
    """
    passes = 3.0 if job.method == "full" else 2.0
    return passes * job.model.forward_flops_per_token((job.sequence_length + 1) / 2)


def _learning(job: Job) -> tuple[Job, ...]:
    """Return the companions that learn, each as a job of its own."""
    return tuple(companion.job for companion in job.companions if companion.trainable)


def _fill_seconds(layouts: Candidates, job: Job, pace: Pace) -> FloatArray:
    """Return the filling and draining of a pipeline: that of 1F1B as of GPipe, a chunk's where they are interleaved.

    Idle is (p - 1)/(v m + p - 1) of a step (Huang et al. 2019, arXiv:1811.06965, for v = 1; Narayanan et al. 2021,
    section 2.2, arXiv:2104.04473). PipeDream never drains (Narayanan et al. 2019, section 3.2,
    doi:10.1145/3341301.3359646).
    """
    if job.pipeline_schedule == PIPEDREAM:
        return np.zeros(1)
    result: FloatArray = pace.fill / layouts.virtual_pipeline
    return result


def _boundary_seconds(layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency) -> FloatArray:
    """Return the sends that nothing hides: those of filling and draining, and what the stack exposes in between.

    Only a tensor-parallel rank's part of the activations crosses, whether sequence
    parallelism has divided them already or they are scattered and gathered for the
    purpose (Narayanan et al. 2021, section 4.1, arXiv:2104.04473).
    """
    if groups.pipeline.is_alone:
        return NO_SECONDS
    message = tensor_parallel_message_bytes(layouts, job) / layouts.tensor_parallel
    one = send_seconds(message, groups.pipeline)
    between = efficiency.stack.exposed_sends * layouts.virtual_pipeline * layouts.micro_batches(job.global_batch_size)
    result: FloatArray = (2.0 * (layouts.pipeline_parallel - 1) + between) * one
    return result


def _exposed_data_parallel(
    layouts: Candidates, job: Job, groups: Groups, efficiency: Efficiency, compute: FloatArray, pace: Pace
) -> FloatArray:
    """Return what of the traffic computation does not hide.

    Traffic of every micro-batch has all computation to hide behind, traffic of
    the last one only its backward pass, and the gathering of updated weights the
    first forward pass of the next step.
    """
    stack = efficiency.stack
    seconds = data_parallel_seconds(layouts, job, groups, efficiency)
    if job.overlap.gradients and stack.data_overlap_fraction:
        hideable = np.where(layouts.zero_stage >= 2, compute, pace.backward)
        seconds = seconds - np.minimum(seconds, hideable) * stack.data_overlap_fraction
    gather = update_gather_seconds(layouts, job, groups, efficiency)
    if gather is NO_SECONDS:
        return seconds
    behind = np.minimum(gather, pace.forward) * (stack.gather_overlap_fraction if job.overlap.parameters else 0.0)
    result: FloatArray = seconds + gather - behind
    return result


def _optimizer_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return the optimizer's reading and writing of its states on the device, and the products of one that has any."""
    states, kind = job.states, job.optimizer
    moment = states.moment if kind.moment_bytes is None else kind.moment_bytes
    per_element = (
        states.gradient + states.accumulator + 2 * states.master + 2 * states.parameter + 2 * kind.moments * moment
    )
    moved = updated_parameters(layouts, job) * per_element
    rate = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
    products = matrix_update_seconds(layouts, job, hardware, efficiency)
    return np.where(layouts.offload == 0, moved / rate + products, 0.0)


def _offload_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return gradients down, the optimizer on the host, and weights up, one after another."""
    if not any_of(layouts.offload):
        return np.zeros(1)
    elements = updated_parameters(layouts, job)
    pcie = hardware.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
    size = job.precision.compute_bytes
    # The widths in which gradients and weights lie on the device: what the host has of them it casts there.
    there_and_back = elements * (job.states.gradient + job.states.parameter) / pcie
    on_host = elements * HOST_OPTIMIZER_BYTES / efficiency.common.host_memory_bytes_per_second
    weights_up = 2.0 * layouts.micro_batches(job.global_batch_size) * elements * size / pcie
    if "optimizer" not in job.profile.can.offload:
        # The parameters lie on the host: shards in their own width go up for each gather, gradients' come down.
        passes = np.where(layouts.zero_stage == HIGHEST_ZERO_STAGE, 2.0, 1.0)
        each = passes * job.states.parameter + job.states.gradient
        there_and_back = layouts.micro_batches(job.global_batch_size) * elements * each / pcie
        weights_up = np.zeros(1)
    offloaded = np.where(layouts.offload >= 1, there_and_back + on_host, 0.0)
    drives = nvme_seconds(layouts, job, hardware, efficiency, elements)
    weights_up = weights_up + _frozen_up_seconds(layouts, job, pcie)
    if layouts.secondary_shard_group.max(initial=1) > 1:
        # Each gather but a step's first takes a part of the second copy up in the place of one of the first.
        more = np.maximum(secondary_bytes(layouts, job) - elements * size, 0.0)
        weights_up = weights_up + (gathers(layouts, job) - 1) * more / pcie
    return offloaded + np.where(layouts.offload == 2, weights_up, 0.0) + drives


def _frozen_up_seconds(layouts: Candidates, job: Job, pcie_bytes_per_second: float) -> FloatArray:
    """Return frozen weights that lie on the host going up, in the width they are stored in, for each gather."""
    width = base_width(job)
    each = QUOTED_FOUR_BIT_BYTES if width.is_four_bit else width.plain_bytes
    held = frozen_parameters(layouts, job)
    passes = np.where(layouts.zero_stage == HIGHEST_ZERO_STAGE, 2.0, 1.0)
    result: FloatArray = passes * layouts.micro_batches(job.global_batch_size) * held * (each / pcie_bytes_per_second)
    return result


def _paging_seconds(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, peaks: FloatArray | None
) -> FloatArray:
    """Return the round trip of those of a paged optimizer's states that do not fit beside the step's peak.

    They lie in CUDA's managed memory, whose pages leave the device only under
    pressure: at the peak so many bytes as are over the limit, which come back for
    the update (Dettmers et al. 2023, section 3, arXiv:2305.14314). `peaks` hold none of them.
    """
    if peaks is None or not job.optimizer.paged_to_host:
        return np.zeros(1)
    moment = job.states.moment if job.optimizer.moment_bytes is None else job.optimizer.moment_bytes
    states = updated_parameters(layouts, job) * job.optimizer.moments * moment
    evicted = np.clip(peaks + states - hardware.limit_bytes, 0.0, states)
    rate = hardware.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
    result: FloatArray = np.where(layouts.offload == 0, 2.0 * evicted / rate, 0.0)
    return result
