"""The pace of a pipeline: what one micro-batch takes on the stage that is slowest.

A stage is as slow as its kernels or as its host. The host launches every kernel
from one thread, so that a layer whose kernels are short waits for the host's
next launch: a floor that neither smaller micro-batches nor more tensor-parallel
ranks can lower.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, SELECTIVE, Candidates, FloatArray
from plimsoll.planners.timing.compute import layer_seconds
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.experts import expert_seconds_per_layer, tensor_traffic_multiple
from plimsoll.planners.timing.rank_parameters import stage_parameters
from plimsoll.planners.timing.stages import stage_shape
from plimsoll.planners.timing.traffic import (
    COLLECTIVES_PER_LAYER,
    Groups,
    context_seconds_per_layer,
    tensor_parallel_seconds_per_layer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of one micro-batch on the slowest stage, by what they are spent on.

    `fill` is what the other stages take one after another before the slowest
    is busy and after it is done.
    """

    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray
    exchange: FloatArray
    context_exchange: FloatArray
    expert_exchange: FloatArray
    fill: FloatArray


def micro_batch_pace(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, groups: Groups) -> Pace:
    """Return the pace of every layout."""
    layer = _mean_layer(layouts, job, hardware, efficiency)
    head = layer_seconds(job.head, layouts, job, hardware, efficiency)
    overlaps = layouts.sequence_parallel & np.bool_(job.attention == "flash")
    exposed = 1.0 - np.where(overlaps, efficiency.stack.tensor_overlap_fraction, 0.0)
    tensor = tensor_parallel_seconds_per_layer(layouts, job, groups) * exposed
    to_experts = np.zeros(1)
    if job.model.experts_per_token:
        tensor = tensor * tensor_traffic_multiple(layouts, job)
        to_experts = expert_seconds_per_layer(layouts, job, hardware, efficiency) * (
            1.0 - efficiency.stack.expert_overlap_fraction
        )
    context = context_seconds_per_layer(layouts, job, groups, layer.attention)
    exchange = tensor + context
    waiting = np.maximum(
        host_seconds_per_layer(layouts, job, hardware, efficiency)
        - layer.forward
        - layer.backward
        - layer.recompute
        - exchange
        - to_experts,
        0.0,
    )
    one = layer.forward + layer.backward + layer.recompute + exchange + to_experts + waiting
    end = head.forward + head.backward
    shape = stage_shape(layouts.pipeline_parallel, job, efficiency.stack)
    head_is_slowest = shape.with_head * one + end >= shape.most * one
    layers = np.where(head_is_slowest, shape.with_head, shape.most)
    slowest = layers * one + np.where(head_is_slowest, end, 0.0)
    accumulation = _accumulation_seconds(layouts, job, hardware, efficiency)
    # Waiting for the host comes in the backward pass twice as long as in the forward: it launches twice as much.
    return Pace(
        forward=layers * (layer.forward + waiting / 3.0) + np.where(head_is_slowest, head.forward, 0.0),
        backward=layers * (layer.backward + waiting * (2.0 / 3.0))
        + np.where(head_is_slowest, head.backward, 0.0)
        + accumulation,
        recompute=layers * layer.recompute,
        exchange=layers * tensor,
        context_exchange=layers * context,
        expert_exchange=layers * to_experts,
        fill=np.maximum(job.model.num_layers * one + end - slowest, 0.0)
        + (layouts.pipeline_parallel - 1) * accumulation,
    )


def host_seconds_per_layer(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return the seconds the host needs to launch one layer forward and backward."""
    stack = efficiency.stack
    own = stack.host_expert_layer_seconds if job.model.experts_per_token else stack.host_layer_seconds
    tensor = layouts.tensor_parallel
    nodes = -(-tensor // hardware.gpus_per_node)
    collectives = np.where(tensor > 1, COLLECTIVES_PER_LAYER * stack.host_collective_seconds * nodes, 0.0)
    # Every tensor-parallel rank adds to a layer's launches beside a pipeline that leaves the node.
    waits = (tensor > 1) & (layouts.pipeline_parallel > 1) & (layouts.gpus > hardware.gpus_per_node)
    result: FloatArray = own + collectives + np.where(waits, tensor * stack.host_rank_seconds, 0.0)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray
    attention: FloatArray


def _mean_layer(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> _Layer:
    """Return one layer of one micro-batch, the mean where a model has several kinds."""
    forward = backward = attention = selective = np.zeros(1)
    for part in job.layers:
        share = part.block.repeats / job.model.num_layers
        seconds = layer_seconds(part, layouts, job, hardware, efficiency)
        forward = forward + share * seconds.forward
        backward = backward + share * seconds.backward
        attention = attention + share * seconds.attention
        selective = selective + share * seconds.selective_recompute
    stage_layers = np.ceil(job.model.num_layers / layouts.pipeline_parallel)
    covered = np.where(layouts.full_layers == ALL_LAYERS, 1.0, np.minimum(layouts.full_layers / stage_layers, 1.0))
    again = np.where(layouts.recompute == SELECTIVE, selective, 0.0)
    recompute = np.where(layouts.recompute == FULL, covered * forward, again)
    return _Layer(forward=forward, backward=backward, recompute=recompute, attention=attention)


def _accumulation_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return the adding of one micro-batch's gradients to those before it, where a rank keeps them whole.

    The gradient is read, and the sum read and written, unless the product that
    makes the gradient adds it as it writes. From ZeRO stage 2 on a rank adds only
    what it was sent.
    """
    if efficiency.stack.adds_gradients_in_products:
        return np.zeros(1)
    states = job.states
    moved = states.gradient + 2 * (states.accumulator or states.gradient)
    rate = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
    whole = stage_parameters(layouts, job) * (moved / rate)
    return np.where((layouts.zero_stage < 2) & (layouts.micro_batches(job.global_batch_size) > 1), whole, 0.0)
