"""The pace of a pipeline: what one micro-batch takes on the stage that is slowest.

A stage is as slow as its kernels or as its host. The host launches every kernel
from one thread, so that a layer whose kernels are short waits for the host's
next launch: a floor that neither smaller micro-batches nor more tensor-parallel
ranks can lower.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.recompute_modules import FEED_FORWARD, MIXTURE
from plimsoll.planners.layouts.candidates import FULL, SELECTIVE, Candidates, FloatArray, any_of, hides_tensor_traffic
from plimsoll.planners.layouts.stages import pipeline_of, stage_blocks
from plimsoll.planners.plans import StageStep
from plimsoll.planners.timing.collectives import NO_SECONDS
from plimsoll.planners.timing.compute import layer_seconds, selective_recompute_seconds
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.experts import (
    expert_seconds_per_layer,
    exposed_exchange_seconds,
    has_experts,
    tensor_traffic_multiple,
)
from plimsoll.planners.timing.rank_parameters import stage_parameters
from plimsoll.planners.timing.stages import PacingStages, pacing_stages
from plimsoll.planners.timing.traffic import (
    COLLECTIVES_PER_LAYER,
    Groups,
    context_seconds_per_layer,
    recomputed_share,
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


def micro_batch_pace(
    layouts: Candidates,
    job: Job,
    hardware: Hardware,
    efficiency: Efficiency,
    groups: Groups,
    stages: Callable[[Candidates, Job], PacingStages] = pacing_stages,
) -> Pace:
    """Return the pace of every layout, whose `stages` are its own or shares that none can be faster than."""
    parts = (*job.layers, *([job.multi_token] if job.multi_token else ()))
    layers = tuple(_layer(part, layouts, job, hardware, efficiency, groups) for part in job.layers)
    if job.multi_token is not None:
        layers = (*layers, _joint(job.multi_token, layouts, job, hardware, efficiency, groups))
    head = layer_seconds(job.head, layouts, job, hardware, efficiency)
    end = head.forward + head.backward
    slowest = stages(layouts, job).of_slowest(tuple(layer.seconds for layer in layers), end)
    accumulation = _accumulation_seconds(layouts, job, hardware, efficiency)
    everything = sum(
        (part.block.repeats * layer.unpaired for part, layer in zip(parts, layers, strict=True)), job.model.heads * end
    )

    def together(name: str) -> FloatArray:
        """Return one part of all layers of the slowest stage."""
        parts = [getattr(layer, name) for layer in layers]
        if all(part is NO_SECONDS for part in parts):
            return NO_SECONDS
        every = zip(slowest.layers_of_kind, parts, strict=True)
        return functools.reduce(operator.add, (count * part for count, part in every))

    own = slowest.seconds
    if any_of(layouts.expert_overlap):
        own = np.where(layouts.expert_overlap, together("unpaired") + slowest.heads * end, own)
    return Pace(
        forward=together("forward") + slowest.heads * head.forward,
        backward=together("backward") + slowest.heads * head.backward + accumulation,
        recompute=together("recompute"),
        exchange=together("exchange"),
        context_exchange=together("context_exchange"),
        expert_exchange=together("expert_exchange"),
        fill=np.maximum(everything - own, 0.0) + (layouts.pipeline_parallel - 1) * accumulation,
    )


def context_seconds(
    layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> tuple[FloatArray, ...]:
    """Return what context ranks send that attention does not hide, of a micro-batch and a layer of each kind."""
    groups = Groups(layouts, job, hardware, efficiency)
    own = (layer_seconds(part, layouts, job, hardware, efficiency) for part in job.layers)
    return tuple(context_seconds_per_layer(layouts, job, groups, seconds.attention) for seconds in own)


def stage_steps(
    one: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, groups: Groups
) -> tuple[StageStep, ...]:
    """Return what one micro-batch takes on each stage of a single layout; the most of it is the pace."""
    head = layer_seconds(job.head, one, job, hardware, efficiency)
    of_kind = [_layer(part, one, job, hardware, efficiency, groups).seconds.item() for part in job.layers]
    held = stage_blocks(pipeline_of(one, 0, job))
    seconds = held.layers_of_kind @ of_kind + held.has_head * (head.forward + head.backward)
    if job.multi_token is not None:
        # Each further layer joins its inputs and has the head again.
        joint = _joint(job.multi_token, one, job, hardware, efficiency, groups).seconds.item()
        further = held.has_multi_token * job.model.multi_token_layers
        seconds = seconds + further * (joint + head.forward + head.backward)
    seconds = seconds + _accumulation_seconds(one, job, hardware, efficiency)
    layers = held.layers_of_kind.sum(axis=1)
    return tuple(
        StageStep(stage=stage, layers=int(layers[stage]), micro_batch_seconds=float(seconds[stage]))
        for stage in range(layers.size)
    )


def host_seconds_per_layer(
    part: BlockWeights, layouts: Candidates, hardware: Hardware, efficiency: Efficiency
) -> FloatArray:
    """Return the seconds the host needs to launch one layer forward and backward."""
    stack = efficiency.stack
    own = stack.host_expert_layer_seconds if has_experts(part) else stack.host_layer_seconds
    tensor = layouts.tensor_parallel
    if tensor.max(initial=1) <= 1:
        return np.full(1, own)
    nodes = -(-tensor // hardware.gpus_per_node)
    collectives = np.where(tensor > 1, COLLECTIVES_PER_LAYER * stack.host_collective_seconds * nodes, 0.0)
    # Every tensor-parallel rank adds to a layer's launches beside a pipeline that leaves the node.
    waits = (tensor > 1) & (layouts.pipeline_parallel > 1) & (layouts.gpus > hardware.gpus_per_node)
    result: FloatArray = own + collectives + np.where(waits, tensor * stack.host_rank_seconds, 0.0)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer of a kind and one micro-batch on one rank, waiting for the host included; `seconds` are all parts.

    `unpaired` are those of passes that no other micro-batch's run beside, which hide no exchange with experts.
    """

    forward: FloatArray
    backward: FloatArray
    recompute: FloatArray
    exchange: FloatArray
    context_exchange: FloatArray
    expert_exchange: FloatArray
    seconds: FloatArray
    unpaired: FloatArray


def _layer(
    part: BlockWeights, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, groups: Groups
) -> _Layer:
    """Return one layer of a kind.

    Waiting for the host comes in the backward pass twice as long as in the forward: it launches twice as much.
    """
    own = layer_seconds(part, layouts, job, hardware, efficiency)
    recompute, is_selective, is_full = NO_SECONDS, layouts.recompute == SELECTIVE, layouts.recompute == FULL
    if any_of(is_selective):
        again = selective_recompute_seconds(part, own, layouts, job, hardware, efficiency)
        recompute = np.where(is_selective, again, 0.0)
    if any_of(is_full):
        recompute = np.where(is_full, recomputed_share(layouts, job) * own.forward, recompute)
    feed_forward = MIXTURE if has_experts(part) else FEED_FORWARD
    tensor = tensor_parallel_seconds_per_layer(layouts, job, groups, feed_forward=feed_forward)
    if job.overlap.hides_tensor_parallel and tensor is not NO_SECONDS:
        hidden = np.where(hides_tensor_traffic(layouts, job), efficiency.stack.tensor_overlap_fraction, 0.0)
        tensor = tensor * (1.0 - hidden)
    exchange = to_experts = NO_SECONDS
    computed = own.forward + own.backward
    if recompute is not NO_SECONDS:
        computed = computed + recompute
    if has_experts(part):
        tensor = tensor * tensor_traffic_multiple(part, layouts, job)
        exchange = expert_seconds_per_layer(layouts, job, hardware, efficiency)
        to_experts = exposed_exchange_seconds(exchange, computed, layouts, job, efficiency)
    context = context_seconds_per_layer(layouts, job, groups, own.attention)
    host = host_seconds_per_layer(part, layouts, hardware, efficiency)
    busy = functools.reduce(
        operator.add, (each for each in (computed, tensor, context, to_experts) if each is not NO_SECONDS)
    )
    waiting = np.maximum(host - busy, 0.0)
    seconds = unpaired = busy + waiting
    if any_of(layouts.expert_overlap):
        alone = np.maximum(computed + tensor + context + exchange, host)
        unpaired = np.where(layouts.expert_overlap, alone, seconds)
    return _Layer(
        forward=own.forward + waiting / 3.0,
        backward=own.backward + waiting * (2.0 / 3.0),
        recompute=recompute,
        exchange=tensor,
        context_exchange=context,
        expert_exchange=to_experts,
        seconds=seconds,
        unpaired=unpaired,
    )


# Ranks that split a matrix gather the two features that it joins, and its output; a layer gathers and scatters four.
JOINT_TRAFFIC = 3 / 4


def _joint(
    part: BlockWeights, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency, groups: Groups
) -> _Layer:
    """Return what joins one layer for multi-token prediction to the model.

    Source: Megatron-Core, transformer/multi_token_prediction.py, `_concat_embeddings`.
    """
    own = layer_seconds(part, layouts, job, hardware, efficiency)
    recompute = np.where(layouts.recompute == FULL, own.forward, 0.0)
    exchange = JOINT_TRAFFIC * tensor_parallel_seconds_per_layer(layouts, job, groups)
    nothing, seconds = np.zeros(1), own.forward + own.backward + recompute + exchange
    return _Layer(
        forward=own.forward,
        backward=own.backward,
        recompute=recompute,
        exchange=exchange,
        context_exchange=nothing,
        expert_exchange=nothing,
        seconds=seconds,
        unpaired=seconds,
    )


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
