"""The nodes that vLLM's ranks lie on.

Sources: vllm, engine/arg_utils.py (create_engine_config: the local world of `--nnodes`, `--data-parallel-size-local`),
config/parallel.py and entrypoints/cli/serve.py (0.11.2 to 0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.service.engines.command import Values
from plimsoll.service.engines.nodes import model_ranks, uses_ray_executor

# A load balancer of somebody else's: each process has one data-parallel rank of its own.
ONE_RANK = frozenset({"--data-parallel-external-lb", "-dpe", "--data-parallel-rank", "-dpn"})


def ranks_of_node(values: Values, others: set[str]) -> int | None:
    """Return the ranks of each node, None where they are not said."""
    ranks, data, nodes = model_ranks(values), int(values.get("data_parallel", 1)), int(values.get("nodes", 1))
    if nodes > 1:
        return ranks * data // nodes if ranks * data % nodes == 0 else None
    if ONE_RANK & others:
        return ranks
    if "local_data_parallel" in values:
        return ranks * int(values["local_data_parallel"])
    is_local_unsaid = not {"--data-parallel-size-local", "-dpl"} & others
    return ranks * data if data > 1 and is_local_unsaid else None


def node_rules(values: Values) -> Iterator[str]:
    """Yield why vLLM does not start on the nodes that its arguments name."""
    nodes, data = int(values.get("nodes", 1)), int(values.get("data_parallel", 1))
    ranks = model_ranks(values) * data
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
