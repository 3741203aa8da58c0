"""What is said of a node's host memory: whether it will do, what it is taken to be, and what loading takes of it."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.catalogue.host_memory import known_hosts
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.plans import Memory, TrainingPlan

FIELD = "hardware.host_memory_bytes"


def lacking_host_bytes(memory: Memory) -> int:
    """Return how much host memory the fullest node lacks even where it has the most there is; 0 where it lacks none."""
    return max((memory.node_host_bytes or 0) - (memory.node_host_limit_bytes or 0), 0)


def is_host_sure(memory: Memory) -> bool:
    """Return whether the fullest node is sure to have the host memory that it needs."""
    return (memory.node_host_bytes or 0) <= (memory.node_host_sure_bytes or 0)


def host_shortage(memory: Memory, *, is_given: bool) -> str:
    """Return a sentence on what the node needs, where it may lack it; empty where it is sure to have it.

    `is_given` says that the request has what a node has.
    """
    if is_host_sure(memory):
        return ""
    needs = f"The fullest node needs {_gib(memory.node_host_bytes)} of host memory"
    most = _gib(memory.node_host_limit_bytes)
    if is_given:
        return f"{needs} and has {most}."
    if lacking_host_bytes(memory):
        return f"{needs}, and nodes with this GPU are taken to have {most} at most; set {FIELD} where yours has more."
    return (
        f"{needs}. Some nodes with this GPU have {most}, others no more than {_gib(memory.node_host_sure_bytes)} for "
        f"the GPUs in use; set {FIELD} to what yours has."
    )


def host_notes(plan: TrainingPlan, hardware: Hardware) -> Iterator[str]:
    """Yield what the host memory is taken to be, where a plan uses any, and what loading takes beyond it."""
    memory, gpus = plan.memory, min(plan.layout.gpus, hardware.gpus_per_node)
    if memory.node_host_bytes:
        yield _what_is_there(hardware)
    loading = sum(spike.host_bytes for spike in memory.spikes if spike.name == "loading") * gpus
    if loading > (memory.node_host_limit_bytes or 0):
        yield (
            f"Loading the weights as {plan.layout.framework} does would take {_gib(loading)} of host memory per node, "
            f"more than its {_gib(memory.node_host_limit_bytes)}. The verdict leaves loading out: a run from scratch "
            "loads nothing, and weights can be loaded shard by shard."
        )


def _what_is_there(hardware: Hardware) -> str:
    if hardware.host_memory_bytes is not None:
        return f"A node has {_gib(hardware.host_memory_bytes)} of host memory, as given."
    known = known_hosts(hardware.gpu)
    bounds = (
        f"at least {_gib(known.least_bytes_per_gpu)} of host memory per GPU, as {known.least} has, and "
        f"{_gib(known.most_bytes)} at most, as {known.most} has"
    )
    if known.holds_gpu:
        return f"A node is taken to have {bounds}; set {FIELD} to what yours has."
    return (
        f"The catalogue has no node with this GPU. One is taken to have {bounds}, each scaled by the GPUs' own memory; "
        f"set {FIELD} to what yours has."
    )


def _gib(size: int | None) -> str:
    return f"{(size or 0) / GIB:,.1f} GiB"
