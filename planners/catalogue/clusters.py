"""One kind of node that GPUs come in, with its network: a server, a rack, or a cloud's machine."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from plimsoll.planners.ground.data_files import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of one kind, joined by their network.

    `gpu` is the catalogue's id of what they hold. Rates are for one GPU and one
    direction: `link_bytes_per_second` to the others of the node, and
    `nic_bytes_per_second` to other nodes, an adapter that several share divided
    among them. `host_memory_bytes` is the whole node's.
    """

    id: str
    name: str
    gpu: str
    gpus_per_node: int
    link_kind: str
    link_bytes_per_second: float
    nic_bytes_per_second: float
    host_memory_bytes: int
    source: str
    aliases: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def read_cluster(content: bytes) -> Cluster:
    """Return the cluster that a catalogue file describes."""
    return record(Cluster, tomllib.loads(content.decode()))
