"""Ring collectives over groups of ranks, within a node and between nodes.

Source: Patarasuk & Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002; the
hops' latencies as NCCL's own tuning model adds them (graph/tuning.cc).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.timing.efficiency import Efficiency

# What takes no time whatever the layout; whoever gets it leaves it as it is.
NO_SECONDS: FloatArray = np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Groups of `ranks` ranks each, one entry a layout, the rate of one hop and the latency of one way round them.

    A group that `is_alone` has one rank, whatever the layout.
    """

    ranks: IntArray
    bytes_per_second: FloatArray
    ring_seconds: FloatArray
    launch_seconds: float
    is_alone: bool


def rank_group(
    ranks: IntArray, stride: IntArray, hardware: Hardware, efficiency: Efficiency, *, hop_multiple: float = 1.0
) -> RankGroup:
    """Return groups whose members stand `stride` ranks apart; `hop_multiple` is of the latency between nodes.

    A ring that leaves the node is as fast as the network cards of all its
    members in the node together, and never faster than the link inside. One that
    leaves a pod of the network shares what is left there (Llama Team 2024, section
    3.3.1, arXiv:2407.21783: 3,072 GPUs a pod, 1 to 7 beyond).
    """
    link = hardware.gpu.link_bytes_per_second * efficiency.gpu.link_fraction
    link_hop = efficiency.common.link_hop_seconds
    is_alone = bool(ranks.max(initial=1) <= 1)
    if is_alone or (ranks * stride).max(initial=1) <= hardware.gpus_per_node:
        # None leaves the node.
        ring: FloatArray = np.maximum(ranks - 1, 0) * link_hop
        return RankGroup(
            ranks=ranks,
            bytes_per_second=np.array([link]),
            ring_seconds=ring,
            launch_seconds=efficiency.common.launch_seconds,
            is_alone=is_alone,
        )
    # Division of floats is several times faster than of integers, and exact at these sizes.
    in_node = np.minimum(
        np.maximum(np.floor(hardware.gpus_per_node / np.maximum(stride, 1)), 1.0), np.maximum(ranks, 1)
    )
    leaves_node = ranks > in_node
    cards = in_node * hardware.gpu.nic_bytes_per_second
    if hardware.network is not None:
        leaves_pod = (ranks - 1) * stride >= hardware.network.gpus_per_pod
        cards = np.where(leaves_pod, cards / hardware.network.oversubscription, cards)
    network = np.minimum(link, cards * (efficiency.gpu.network_fraction * efficiency.stack.network_fraction))
    nodes = np.ceil(ranks / in_node)
    inner_hops = np.maximum(ranks - nodes, 0)
    network_hop = efficiency.common.network_hop_seconds * hop_multiple
    ring = inner_hops * link_hop + (nodes - 1) * network_hop
    return RankGroup(
        ranks=ranks,
        bytes_per_second=np.where(leaves_node, network, link),
        ring_seconds=ring,
        launch_seconds=efficiency.common.launch_seconds,
        is_alone=False,
    )


def all_gather_seconds(gathered_bytes: FloatArray, group: RankGroup) -> FloatArray:
    """Return one ring all-gather, or reduce-scatter: each rank sends all chunks but one."""
    if group.is_alone:
        return NO_SECONDS
    # Floating point, of which all else is: numpy casts mixed operands more slowly than it multiplies them.
    ranks = np.maximum(group.ranks, 1).astype(np.float64)
    sent = gathered_bytes * (ranks - 1) / ranks
    seconds = group.launch_seconds + group.ring_seconds + sent / group.bytes_per_second
    result: FloatArray = np.where(ranks > 1, seconds, 0.0)
    return result


def all_reduce_seconds(message_bytes: FloatArray, group: RankGroup) -> FloatArray:
    """Return one ring all-reduce: a reduce-scatter and an all-gather of the same message."""
    return NO_SECONDS if group.is_alone else 2.0 * all_gather_seconds(message_bytes, group)


def all_to_all_seconds(
    message_bytes: FloatArray, ranks: IntArray, stride: IntArray, hardware: Hardware, efficiency: Efficiency
) -> FloatArray:
    """Return one exchange of equal parts of each rank's message, of which it keeps its own.

    What goes to another node takes a rank's own network card, the rest the link inside.
    """
    gpu, reached = hardware.gpu, efficiency.gpu
    inside = np.clip(hardware.gpus_per_node // np.maximum(stride, 1), 1, ranks)
    by_link = (inside - 1) / ranks / (gpu.link_bytes_per_second * reached.link_fraction)
    network = gpu.nic_bytes_per_second * (reached.network_fraction * efficiency.stack.network_fraction)
    by_network = (ranks - inside) / ranks / network
    if hardware.network is not None:
        leaves_pod = (ranks - 1) * stride >= hardware.network.gpus_per_pod
        by_network = np.where(leaves_pod, by_network * hardware.network.oversubscription, by_network)
    one = efficiency.common.launch_seconds + message_bytes * np.maximum(by_link, by_network)
    result: FloatArray = np.where(ranks > 1, one, 0.0)
    return result


def send_seconds(message_bytes: FloatArray, group: RankGroup) -> FloatArray:
    """Return one send to the next rank of the group."""
    if group.is_alone:
        return NO_SECONDS
    seconds = group.launch_seconds + message_bytes / group.bytes_per_second
    result: FloatArray = np.where(group.ranks > 1, seconds, 0.0)
    return result
