"""On how many nodes a serving engine's ranks lie, and how many of them on each.

Sources: vllm, engine/arg_utils.py (create_engine_config: the local world of `--nnodes`, `--data-parallel-size-local`),
config/parallel.py and entrypoints/cli/serve.py (0.11.2 to 0.33.0); sglang, srt/entrypoints/engine.py
(_calculate_rank_ranges) and check_server_args of srt/server_args.py, in 0.5.23 srt/arg_groups/validation_hook.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.service.engines.engine_command import SGLANG, VLLM, EngineCommand
from plimsoll.service.workloads.commands.flags import Arguments

EXECUTOR_FIELDS = ("executor", "replica_executor")
# The executor that finds GPUs on nodes of its own cluster.
RAY = "ray"
# They divide the ranks of an engine that runs on several nodes, and mean nothing on one.
NODE_FLAGS = frozenset({"--nnodes", "-n", "--node-rank", "-r", "--dist-init-addr", "--nccl-init-addr"})
# A load balancer of somebody else's: each process has one data-parallel rank of its own.
ONE_RANK = frozenset({"--data-parallel-external-lb", "-dpe", "--data-parallel-rank", "-dpn"})
# More ranks than the table reads.
UNCOUNTED = frozenset({"--prefill-context-parallel-size", "--ep-join-mode"})
ADDRESS_FIELDS = ("address", "data_address")
RAY_ADDRESS = re.compile(r"^--(?:ray[-_])?address(?:=|$)")
# The pod itself, or the leader that the controller of a whole group names; any other may be another object's.
OWN_ADDRESS = re.compile(
    r"LWS_LEADER_ADDRESS|MASTER_ADDR|POD_IP|HOSTNAME|hostname|^(?:https?://|tcp://)?(?:0\.0\.0\.0|127\.0\.0\.1|localhost|auto|\[?::1?\]?)(?::|$)"
)
Values = Mapping[str, Any]


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


def nodes_of(command: EngineCommand, read: Arguments) -> Nodes:
    """Return where the ranks of an engine lie, as its arguments say."""
    values, others = read.values, {name.replace("_", "-") for name in read.others}
    count = int(values["nodes"]) if "nodes" in values else None
    spanning = command.spanning & others
    if count == 1 or (command is SGLANG and "--nnodes" not in others):
        spanning -= NODE_FLAGS
    uses_ray = uses_ray_executor(values)
    return Nodes(
        count=count,
        gpus_each=None if uses_ray or UNCOUNTED & others else _gpus_each(command, values, others),
        spans_pods=bool(spanning) or bool(values.get("headless")) or uses_ray,
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


def _model_ranks(values: Values) -> int:
    return int(values.get("tensor_parallel", 1)) * int(values.get("pipeline_parallel", 1))


def _gpus_each(command: EngineCommand, values: Values, others: set[str]) -> int | None:
    ranks, data, nodes = _model_ranks(values), int(values.get("data_parallel", 1)), int(values.get("nodes", 1))
    if "--nnodes" in others and "nodes" not in values:
        return None
    if command is SGLANG:
        # Without attention's data parallelism replicas lie on one node.
        return ranks // nodes if nodes > 1 and ranks % nodes == 0 else None
    if command is not VLLM:
        return None
    if nodes > 1:
        return ranks * data // nodes if ranks * data % nodes == 0 else None
    if ONE_RANK & others:
        return ranks
    if "local_data_parallel" in values:
        return ranks * int(values["local_data_parallel"])
    is_local_unsaid = not {"--data-parallel-size-local", "-dpl"} & others
    return ranks * data if data > 1 and is_local_unsaid else None


def broken_node_rules(command: EngineCommand, read: Arguments) -> Iterator[str]:
    """Yield why an engine does not start on the nodes that its arguments name."""
    values, others = read.values, {name.replace("_", "-") for name in read.others}
    if UNCOUNTED & others or 0 in (values.get("tensor_parallel"), values.get("pipeline_parallel")):
        return
    if values.get("nodes") == 0:
        yield "--nnodes 0 leaves no node; 1 is the least"
        return
    if command is VLLM:
        yield from _of_vllm(values)
    elif command is SGLANG:
        yield from _of_sglang(values)


def _of_vllm(values: Values) -> Iterator[str]:
    nodes, data = int(values.get("nodes", 1)), int(values.get("data_parallel", 1))
    ranks = _model_ranks(values) * data
    if nodes > 1 and uses_ray_executor(values):
        yield f"--nnodes {nodes} is for the mp executor; Ray finds its nodes by itself, so leave --nnodes out"
    elif nodes > 1 and ranks % nodes:
        yield f"its {ranks} ranks do not divide by --nnodes {nodes}"
    if nodes > 1 and int(values.get("node_rank", 0)) >= nodes:
        yield f"--node-rank {values['node_rank']} is not below --nnodes {nodes}"
    local = values.get("local_data_parallel")
    if local is not None and int(local) > data:
        yield f"--data-parallel-size-local {local} is more than --data-parallel-size {data}"
    if local == 0 and values.get("headless"):
        yield "--headless with --data-parallel-size-local 0 starts no engine; 1 is the least"


def _of_sglang(values: Values) -> Iterator[str]:
    nodes, stages = int(values.get("nodes", 1)), int(values.get("pipeline_parallel", 1))
    ranks = _model_ranks(values)
    if nodes > 1 and ranks % nodes:
        yield f"tp x pp = {ranks} ranks do not divide by --nnodes {nodes}"
    elif stages % nodes and nodes % stages:
        yield f"{stages} pipeline stages and --nnodes {nodes} do not divide each other"
    data = int(values.get("data_parallel", 1))
    if nodes > 1 and data > 1 and not values.get("is_attention_data_parallel"):
        yield f"--dp-size {data} starts replicas, which share one node: add --enable-dp-attention, or drop --nnodes"
