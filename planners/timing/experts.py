"""Experts in time: the exchange of tokens between ranks, and what tensor parallelism adds to it.

A token goes to its k experts' ranks and its results come back, forward and
backward: four all-to-all exchanges a layer (Lepikhin et al. 2020, section 3.2,
arXiv:2006.16668; Rajbhandari et al. 2022, DeepSpeed-MoE, arXiv:2201.05596).
"""

from __future__ import annotations

import functools

import numpy as np

from plimsoll.planners.architecture import Part
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import FULL, Candidates, FloatArray, any_of, recomputes_module
from plimsoll.planners.layouts.experts import busiest_rank_multiple, expert_tensor_ranks, paired_fraction
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.traffic import recomputed_share

EXPERT_EXCHANGES_PER_LAYER = 4  # dispatch and combine, forward and backward
FORWARD_EXCHANGES = 2
# Kinds of layers of some hundred models.
MOST_KEPT_PARTS = 4096


def expert_token_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return one copy of every token that a rank sends to experts in a layer that has them.

    Tensor-parallel ranks share the tokens among them.
    """
    width = job.model.hidden_size * job.precision.compute_bytes
    result: FloatArray = layouts.local_tokens(job.sequence_length) * width / layouts.tensor_parallel
    return result


def exchanges_per_layer(layouts: Candidates, job: Job) -> FloatArray:
    """Return how often a layer's tokens are exchanged in a micro-batch.

    Full recompute dispatches and combines again, and so does that of whole mixtures; one that keeps matrix products
    keeps what was exchanged too.
    """
    of_layers = np.where(layouts.recompute == FULL, recomputed_share(layouts, job), 0.0)
    of_mixtures = recomputes_module(layouts, job, MIXTURE)
    return EXPERT_EXCHANGES_PER_LAYER + FORWARD_EXCHANGES * np.where(of_mixtures, 1.0, of_layers)


def expert_exchange_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return one exchange of a layer's tokens with the ranks of their experts, the busiest rank's.

    A token goes to its k experts' ranks, evenly spread. Over the network it goes
    once to each node that has any of them, (n − 1)·(1 − (1 − 1/n)^k) of n nodes,
    and is copied there (DeepSeek-AI 2024, section 3.2.2, arXiv:2412.19437).
    """
    ranks, chosen = layouts.expert_parallel, job.model.experts_per_token
    token_bytes = expert_token_bytes(layouts, job) * busiest_rank_multiple(layouts, job)
    # Ranks that share experts are neighbours, but for those that cut an expert among them.
    stride = expert_tensor_ranks(layouts, job)
    inside = np.clip(hardware.gpus_per_node // stride, 1, ranks)
    nodes = np.ceil(ranks / inside)
    gpu, reached = hardware.gpu, efficiency.gpu
    by_link = chosen * (inside - 1) / ranks / (gpu.link_bytes_per_second * reached.link_fraction)
    away = (nodes - 1) * (1.0 - (1.0 - 1.0 / nodes) ** chosen)
    by_network = away / (gpu.nic_bytes_per_second * (reached.network_fraction * efficiency.stack.network_fraction))
    if hardware.network is not None:
        leaves_pod = (ranks - 1) * stride >= hardware.network.gpus_per_pod
        by_network = np.where(leaves_pod, by_network * hardware.network.oversubscription, by_network)
    one = efficiency.common.launch_seconds + token_bytes * np.maximum(by_link, by_network)
    result: FloatArray = np.where(ranks > 1, one, 0.0)
    return result


def expert_seconds_per_layer(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return all exchanges of a layer with experts in one micro-batch, hidden or not."""
    return exchanges_per_layer(layouts, job) * expert_exchange_seconds(layouts, job, hardware, efficiency)


def exposed_exchange_seconds(
    exchange: FloatArray, computation: FloatArray, layouts: Candidates, job: Job, efficiency: Efficiency
) -> FloatArray:
    """Return what computation does not hide of a layer's exchanges in one micro-batch.

    Where a layout hides them, the exchanges of one micro-batch's forward and another's backward pass run beside the
    `computation` of both: what is longer than that stays exposed. Meanwhile the kernels that send have a part of the
    GPU's processors, so that so much of the time that is hidden comes back as slower computation. Passes without a pair
    hide nothing.

    Source: NVIDIA/Megatron-LM, docs/user-guide/features/moe_a2a_overlap.md (DeepSeek-V3 on H100: 20 of 132 processors
    cost about a fifth of the products' speed); DeepSeek-AI 2024, section 3.2.2, arXiv:2412.19437.
    """
    stack = efficiency.stack
    plain = exchange * (1.0 - stack.expert_overlap_fraction)
    if not any_of(layouts.expert_overlap):
        return plain
    micro_batches = layouts.micro_batches(job.global_batch_size)
    paired = paired_fraction(layouts.pipeline_parallel, layouts.virtual_pipeline, micro_batches)
    beside = np.maximum(exchange - computation, stack.expert_overlap_cost_fraction * exchange)
    return np.where(layouts.expert_overlap, paired * beside + (1.0 - paired) * exchange, plain)


def tensor_traffic_multiple(part: BlockWeights, layouts: Candidates, job: Job) -> FloatArray:
    """Return the tensor-parallel traffic of a layer with experts over a dense layer's; attention is half of that.

    Where ranks that share experts also cut each of them, they gather the k copies
    of every token that was dispatched; where an expert stays whole, nothing but
    shared experts is left to exchange. Without expert parallelism tokens are
    gathered before they are copied, as a dense layer's are.

    Source: NVIDIA/Megatron-LM, core/transformer/moe/token_dispatcher.py (MoEAlltoAllTokenDispatcher).
    """
    cut = expert_tensor_ranks(layouts, job) > 1
    routed = np.where(cut, job.model.experts_per_token * busiest_rank_multiple(layouts, job), 0.0)
    feed_forward = np.where(layouts.expert_parallel > 1, routed + _has_shared_expert(part), 1.0)
    return (1.0 + feed_forward) / 2.0


def mixture_layers(job: Job) -> int:
    """Return how many layers have experts to choose from."""
    return sum(part.block.repeats for part in job.layers if has_experts(part))


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def has_experts(part: BlockWeights) -> bool:
    """Return whether a layer has experts to choose from."""
    return any(weight.experts > 1 for weight in part.block.weights)


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def _has_shared_expert(part: BlockWeights) -> bool:
    return any(weight.part is Part.SHARED_EXPERT for weight in part.block.weights)
