"""How much host memory nodes with a GPU have, as the catalogue's clusters have it.

A GPU that no cluster holds is taken to stand beside as much host memory, for each byte of its own, as the GPUs of the
clusters do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.catalogue.clusters import Cluster
from plimsoll.planners.ground.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHosts:
    """Host memory of nodes with a GPU: the least for each of their GPUs, and the most that a whole node has.

    `least` and `most` are the clusters that these come from; `holds_gpu` says that they hold this very GPU.
    """

    least_bytes_per_gpu: int
    most_bytes: int
    least: str
    most: str
    holds_gpu: bool


def known_hosts(gpu: Gpu) -> KnownHosts:
    """Return what is known of the host memory beside a GPU."""
    return _known_hosts(gpu.id, gpu.memory_bytes, gpu.gpus_per_node)


@functools.cache
def _holders(gpu: str) -> tuple[Cluster, ...]:
    return tuple(cluster for cluster in catalogue().clusters if cluster.gpu == gpu)


@functools.lru_cache(maxsize=1024)
def _known_hosts(gpu: str, memory_bytes: int, gpus_per_node: int) -> KnownHosts:
    holders = _holders(gpu)
    if holders:
        least, most = min(holders, key=_bytes_per_gpu), max(holders, key=lambda cluster: cluster.host_memory_bytes)
        per_gpu, whole = _bytes_per_gpu(least), float(most.host_memory_bytes)
    else:
        least, most = min(catalogue().clusters, key=_share), max(catalogue().clusters, key=_share)
        per_gpu, whole = memory_bytes * _share(least), memory_bytes * gpus_per_node * _share(most)
    return KnownHosts(
        least_bytes_per_gpu=int(per_gpu),
        most_bytes=int(whole),
        least=least.id,
        most=most.id,
        holds_gpu=bool(holders),
    )


def _bytes_per_gpu(cluster: Cluster) -> float:
    return cluster.host_memory_bytes / cluster.gpus_per_node


def _share(cluster: Cluster) -> float:
    """Return the bytes of host memory for each byte of the GPUs' own."""
    return _bytes_per_gpu(cluster) / catalogue().gpu(cluster.gpu).memory_bytes
