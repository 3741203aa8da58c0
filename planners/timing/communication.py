"""The communication table: each kind of collective, its message a layer, its calls and seconds a step."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates
from plimsoll.planners.layouts.stages import pipeline_of, stage_blocks
from plimsoll.planners.memory.compression import sent_fraction
from plimsoll.planners.memory.holdings import shard_ranks
from plimsoll.planners.memory.shards import WHOLE, divisions, frozen_elements, split_elements
from plimsoll.planners.plans import Communication
from plimsoll.planners.timing.collectives import RankGroup, all_gather_seconds, all_reduce_seconds, send_seconds
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.experts import (
    exchanges_per_layer,
    expert_seconds_per_layer,
    expert_token_bytes,
    has_experts,
    mixture_layers,
    tensor_traffic_multiple,
)
from plimsoll.planners.timing.traffic import (
    ALL_REDUCES_PER_LAYER,
    Groups,
    context_message_bytes,
    gathers,
    gathers_once_a_step,
    head_exchanges,
    query_bytes,
    ring_hops,
    tensor_parallel_message_bytes,
)


def communication_of(
    layouts: Candidates, index: int, job: Job, hardware: Hardware, efficiency: Efficiency
) -> tuple[Communication, ...]:
    """Return the collectives of one layout; bytes are messages in one layer and micro-batch, before the ring's factor.

    Tensor parallelism: four all-reduces of b·s·h elements, 8·b·s·h bytes in 16
    bits. Pipeline: 2·b·s·h bytes a boundary. Data parallelism: the gradients of
    the layer's parameters, 24·h² bytes in 16 bits for a plain layer of 12·h².
    """
    one = layouts.take([index])
    groups = Groups(one, job, hardware, efficiency)
    layers = int(stage_blocks(pipeline_of(one, 0, job)).layers_of_kind.sum(axis=1).max())
    micro_batches = int(one.micro_batches(job.global_batch_size)[0])
    message = float(tensor_parallel_message_bytes(one, job)[0])
    rows: list[Communication] = []
    if one.tensor_parallel[0] > 1:
        kind = "all_gather_and_reduce_scatter" if one.sequence_parallel[0] else "all_reduce"
        calls = ALL_REDUCES_PER_LAYER * layers * micro_batches
        message_of_kind = message * _mean_traffic(one, job)
        seconds = calls * _seconds(all_reduce_seconds, message_of_kind, groups.tensor)
        rows.append(_row("tensor", kind, ALL_REDUCES_PER_LAYER * message_of_kind, calls, seconds))
    if one.context_parallel[0] > 1:
        hops = 3 * int(ring_hops(one)[0])
        ring = float(context_message_bytes(one, job)[0])
        calls = hops * layers * micro_batches
        if hops:
            seconds = calls * _seconds(send_seconds, ring, groups.context)
            rows.append(_row("context", "send", hops * ring, calls, seconds))
        if one.context_all_to_all[0] > 1:
            rows.append(_head_exchange(one, job, layers * micro_batches, groups))
    if one.expert_parallel[0] > 1 and job.model.experts_per_token:
        whole = float(expert_token_bytes(one, job)[0]) * job.model.experts_per_token
        exchanges = float(exchanges_per_layer(one, job)[0])
        mixtures = layers * mixture_layers(job) / (job.model.num_layers + job.model.multi_token_layers)
        calls = round(exchanges * mixtures * micro_batches)
        seconds = mixtures * micro_batches * float(expert_seconds_per_layer(one, job, hardware, efficiency)[0])
        rows.append(_row("expert", "all_to_all", exchanges * whole, calls, seconds))
    if one.pipeline_parallel[0] > 1:
        division = int(one.tensor_parallel[0]) if one.sequence_parallel[0] else 1
        calls = 2 * micro_batches * int(one.virtual_pipeline[0])
        seconds = calls * _seconds(send_seconds, message / division, groups.pipeline)
        rows.append(_row("pipeline", "send", message / division, calls, seconds))
    rows.extend(_data_rows(one, job, layers, micro_batches, groups))
    return tuple(rows)


def _head_exchange(one: Candidates, job: Job, layers: int, groups: Groups) -> Communication:
    """Return the exchange of heads for tokens before attention and back, in so many layers of micro-batches."""
    queries, keys = query_bytes(one, job), context_message_bytes(one, job) / 2.0
    times = float(head_exchanges(one, job)[0])
    each = 2.0 * (groups.head_exchange_seconds(queries) + groups.head_exchange_seconds(keys))
    message = 2.0 * times * float((queries + keys)[0])
    return _row("context", "all_to_all", message, round(4 * times * layers), times * layers * float(each[0]))


def _mean_traffic(one: Candidates, job: Job) -> float:
    """Return the mean layer's tensor-parallel traffic over a dense layer's."""
    multiples = (
        part.block.repeats * (float(tensor_traffic_multiple(part, one, job)[0]) if has_experts(part) else 1.0)
        for part in job.layers
    )
    return sum(multiples) / (job.model.num_layers + job.model.multi_token_layers)


def _data_rows(
    one: Candidates,
    job: Job,
    layers: int,
    micro_batches: int,
    groups: Groups,
) -> list[Communication]:
    """Return gradient reduction and weight gathering, as the ZeRO stage orders them."""
    data, shard, replica = groups.data, groups.shard, groups.replica
    stage, part = int(one.zero_stage[0]), job.layers[0]
    by = divisions(one, np.full_like(one.tensor_parallel, WHOLE), job)
    learning = float(split_elements(part, by)[0])
    everything = learning + float(frozen_elements(part, by)[0])
    gradient = float(learning * job.reduce_bytes * sent_fraction(job))
    weights = float(everything * job.precision.compute_bytes)
    rows: list[Communication] = []

    def add(group: str, operation: str, message: float, calls: int, ranks: RankGroup) -> None:
        work = all_reduce_seconds if operation == "all_reduce" else all_gather_seconds
        rows.append(_row(group, operation, message, calls, calls * _seconds(work, message, ranks)))

    if stage == 0 and int(data.ranks[0]) > 1:
        add("data", "all_reduce", gradient, layers, data)
    is_copied = bool(one.shard_group[0] < one.data_parallel[0])
    if stage == 1 and int(data.ranks[0]) > 1:
        add("data", "reduce_scatter", gradient, layers, shard if is_copied else data)
        add("data", "all_gather", weights, layers, shard)
    if stage >= 2 and int(shard.ranks[0]) > 1:
        reductions = 1 if gathers_once_a_step(one, job)[0] else micro_batches
        # Weights that lie whole are gathered once, when each rank has updated its part.
        each = max(int(gathers(one, job)[0]), 1)
        has_copy = bool(one.secondary_shard_group[0] > 1)
        add("data", "all_gather", weights, layers * (1 if has_copy else each), shard)
        if has_copy:
            add("secondary", "all_gather", weights, layers * (each - 1), groups.secondary)
        add("data", "reduce_scatter", gradient, layers * reductions, shard)
    if stage >= 1 and is_copied:
        add("replica", "all_reduce", gradient / int(shard_ranks(one, job)[0]), layers, replica)
    return rows


def _seconds(work: object, message: float, group: RankGroup) -> float:
    return float(work(np.array([message]), group)[0])  # type: ignore[operator]


def _row(group: str, operation: str, message: float, calls: int, seconds: float) -> Communication:
    return Communication(
        group=group, operation=operation, bytes_per_layer=int(message), calls_per_step=calls, seconds=seconds
    )
