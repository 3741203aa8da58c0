"""A node's host memory: what a plan needs of it, and whether the node has it.

What a node has is given, or else taken from the catalogue's nodes with that GPU: within the least that any of them has
for each GPU a plan is sure to find room, beyond what the largest has as a whole there is none, and in between it
depends on the node. Loading is left out: a run from scratch reads no weights, and whoever has some can load them shard
by shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.catalogue.host_memory import known_hosts
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory import secondary_shards
from plimsoll.planners.memory.activation_offload import offloaded_bytes
from plimsoll.planners.memory.activity import Activity
from plimsoll.planners.memory.holdings import Holdings
from plimsoll.planners.memory.nvme import placed
from plimsoll.planners.memory.outside_step import saving_host_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHost:
    """What a node has of host memory for the GPUs of it that a plan uses: surely, and at most."""

    sure_bytes: FloatArray
    most_bytes: FloatArray


def node_host(gpus_on_node: IntArray, hardware: Hardware) -> NodeHost:
    """Return what there is of host memory for so many GPUs of one node."""
    given = hardware.host_memory_bytes
    if given is not None:
        there = np.array([given], dtype=np.float64)
        return NodeHost(sure_bytes=there, most_bytes=there)
    known = known_hosts(hardware.gpu)
    sure = gpus_on_node.astype(np.float64) * known.least_bytes_per_gpu
    return NodeHost(sure_bytes=sure, most_bytes=np.maximum(sure, float(known.most_bytes)))


def making_host_bytes(held: Holdings, layouts: Candidates, job: Job) -> FloatArray:
    """Return what a stack's optimizer leaves on the host for a while as it is made, for each GPU of every stage.

    Megatron-Core makes one over whole parameters first (core/optimizer/__init__.py), whose fp32 copies are there until
    Python's garbage collector comes by, perhaps beside all states of the one that trains.
    """
    if not job.profile.host.copies_parameters:
        return np.zeros(1)
    result: FloatArray = np.where(layouts.offload > 0, FP32_BYTES * held.stage_elements, 0.0)
    return result


def host_bytes(held: Holdings, active: Activity, layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return what lies on the host for each GPU of every stage, the first axis, a checkpoint's copy included.

    `active` are the activations before any is offloaded.
    """
    offloaded = np.ceil(
        placed(held, layouts, job).host
        + offloaded_bytes(active, layouts, rows, held, job)
        + secondary_shards.on_host(layouts, job)
    )
    return np.array(offloaded + saving_host_bytes(layouts, job, held), ndmin=rows.stage.ndim, copy=None)
