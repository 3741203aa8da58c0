"""On how many nodes a serving engine's ranks lie, and how many of them on each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plimsoll.service.engines.command import EngineCommand, Values
from plimsoll.service.workloads.commands.flags import Arguments

EXECUTOR_FIELDS = ("executor", "replica_executor")
# The executor that finds GPUs on nodes of its own cluster.
RAY = "ray"
# They divide the ranks of an engine that runs on several nodes, and mean nothing on one.
NODE_FLAGS = frozenset({"--nnodes", "-n", "--node-rank", "-r", "--dist-init-addr", "--nccl-init-addr"})
# More ranks than the table reads.
UNCOUNTED = frozenset({"--prefill-context-parallel-size", "--ep-join-mode"})
ADDRESS_FIELDS = ("address", "data_address")
RAY_ADDRESS = re.compile(r"^--(?:ray[-_])?address(?:=|$)")
# The pod itself, or the leader that the controller of a whole group names; any other may be another object's.
OWN_ADDRESS = re.compile(
    r"LWS_LEADER_ADDRESS|MASTER_ADDR|POD_IP|HOSTNAME|hostname|^(?:https?://|tcp://)?(?:0\.0\.0\.0|127\.0\.0\.1|localhost|auto|\[?::1?\]?)(?::|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Where ranks lie; what is None is not said.

    `spans_pods` where ranks run in other pods than the command's own, and `is_elsewhere`
    where one of them, by its address, belongs to another object.
    """

    count: int | None = None
    gpus_each: int | None = None
    spans_pods: bool = False
    is_elsewhere: bool = False


def other_options(read: Arguments) -> set[str]:
    """Return the options that the table does not hold."""
    return {name.replace("_", "-") for name in read.others}


def nodes_of(command: EngineCommand, read: Arguments) -> Nodes:
    """Return where the ranks of an engine lie, as its arguments say."""
    values, others = read.values, other_options(read)
    count = int(values["nodes"]) if "nodes" in values else None
    named = command.multi_node & others
    if count == 1 or (command.is_on_one_node and "--nnodes" not in others):
        named -= NODE_FLAGS
    uses_ray = uses_ray_executor(values)
    is_uncounted = uses_ray or bool(UNCOUNTED & others) or ("--nnodes" in others and count is None)
    return Nodes(
        count=count,
        gpus_each=None if is_uncounted else command.ranks_of_node(values, others),
        spans_pods=bool(named) or bool(values.get("headless")) or uses_ray,
        is_elsewhere=any(_is_others(str(values[name])) for name in ADDRESS_FIELDS if name in values),
    )


def uses_ray_executor(values: Values) -> bool:
    """Return whether Ray places the ranks."""
    return RAY in {values.get(name) for name in EXECUTOR_FIELDS}


def is_given_others_address(words: Sequence[str]) -> bool:
    """Return whether `ray start`, or a script around it, is told of a cluster to join that may be another object's."""
    told = zip(words, (*words[1:], ""), strict=True)
    addresses = (word.partition("=")[2] or after for word, after in told if RAY_ADDRESS.match(word))
    return any(_is_others(address) for address in addresses if address)


def _is_others(address: str) -> bool:
    return not OWN_ADDRESS.search(address)


def model_ranks(values: Values) -> int:
    """Return the ranks that hold one copy of the model."""
    return int(values.get("tensor_parallel", 1)) * int(values.get("pipeline_parallel", 1))


def broken_node_rules(command: EngineCommand, read: Arguments) -> Iterator[str]:
    """Yield why an engine does not start on the nodes that its arguments name."""
    values, others = read.values, other_options(read)
    if UNCOUNTED & others or 0 in (values.get("tensor_parallel"), values.get("pipeline_parallel")):
        return
    if values.get("nodes") == 0:
        yield "--nnodes 0 leaves no node; 1 is the least"
        return
    yield from command.node_rules(values)
