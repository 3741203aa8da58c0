"""What recovers a run from a failure: torchrun, Horovod elastic and DLRover, and what each leaves of the time.

All three take the same time from a failure to processes that run again, the
question's own; they differ in where the newest checkpoint lies, in what they do
to a bad node, and in whether the data goes on where it stopped.

- torchrun: a failure or a change of members stops and restarts all workers, up to
  --max-restarts times; nothing is kept but what the script saved
  (https://docs.pytorch.org/docs/stable/elastic/quickstart.html).
- Horovod elastic: survivors keep their processes and go back to the last
  `state.commit()` in host memory, which is broadcast from rank 0, so that every
  rank must hold the whole state; failed hosts are blacklisted, and
  `ElasticSampler` repartitions what is left of the epoch
  (https://horovod.readthedocs.io/en/stable/elastic_include.html).
- DLRover: checks nodes by products and collectives in pairs, excludes the bad
  one, relaunches it elsewhere or restarts the process alone; flash checkpoints go
  to host memory and are stored behind the training's back; its sampler's state is
  part of the checkpoint (https://github.com/intelligent-machine-learning/dlrover).
"""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.plans import Layout, Recovery
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.training import resilience


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """How a run fails and saves: times of one checkpoint to storage and of what a failure costs beside reading it.

    Checkpoints are taken between steps, so that no interval is shorter than one.
    """

    checkpoint_bytes: int
    storage_seconds: float
    restart_seconds: float
    mean_between_failures: float
    step_seconds: float


def recoveries(
    layout: Layout, elastic_gpus: tuple[int, ...], hardware: Hardware, efficiency: Efficiency, failing: Failing
) -> tuple[Recovery, ...]:
    """Return each way to recover with its goodput; goodput is None where the layout rules a way out."""
    to_host = host_copy_seconds(layout, hardware, efficiency, failing.checkpoint_bytes)
    nodes = node_range(layout, elastic_gpus, hardware.gpus_per_node)
    return (
        _torchrun(nodes, layout, hardware, failing),
        _horovod(nodes, layout, hardware, failing, to_host),
        _dlrover(nodes, layout, hardware, failing, to_host),
    )


def host_copy_seconds(layout: Layout, hardware: Hardware, efficiency: Efficiency, checkpoint_bytes: int) -> float:
    """Return the copying of one rank's part of a checkpoint to its host, over PCIe."""
    sharers = layout.shard_group if layout.zero_stage > 0 else 1
    parts = layout.tensor_parallel * layout.pipeline_parallel * sharers
    rate = hardware.gpu.pcie_bytes_per_second * efficiency.common.pcie_fraction
    return checkpoint_bytes / parts / rate


def node_range(layout: Layout, elastic_gpus: tuple[int, ...], gpus_per_node: int) -> tuple[int, int]:
    """Return the fewest and the most nodes on which the plan still runs, and on every number between.

    A launcher that may use one to four nodes may start with three. A plan that
    fills no whole number of nodes has no other size.
    """
    nodes = -(-layout.gpus // gpus_per_node)
    if layout.gpus % gpus_per_node:
        return nodes, nodes
    whole = {gpus // gpus_per_node for gpus in elastic_gpus if gpus % gpus_per_node == 0}
    fewest = most = nodes
    while fewest - 1 in whole:
        fewest -= 1
    while most + 1 in whole:
        most += 1
    return fewest, most


def _range_text(nodes: tuple[int, int]) -> str:
    return str(nodes[0]) if nodes[0] == nodes[1] else f"{nodes[0]}:{nodes[1]}"


def _goodput(failing: Failing, saving_seconds: float, recovery_seconds: float) -> tuple[float | None, float]:
    """Return the best interval for checkpoints that hold work up so long, None where none is due, and its goodput."""
    between = failing.mean_between_failures
    interval = max(resilience.daly_interval_seconds(saving_seconds, between), failing.step_seconds)
    productive = resilience.goodput(
        interval_seconds=interval,
        checkpoint_seconds=saving_seconds,
        recovery_seconds=recovery_seconds,
        mean_between_failures=between,
    )
    return (interval if interval < float("inf") else None), productive


def _torchrun(nodes: tuple[int, int], layout: Layout, hardware: Hardware, failing: Failing) -> Recovery:
    recovery = failing.restart_seconds + failing.storage_seconds
    interval, productive = _goodput(failing, failing.storage_seconds, recovery)
    processes = min(layout.gpus, hardware.gpus_per_node)
    return Recovery(
        name="torchrun",
        launch=f"torchrun --nnodes={_range_text(nodes)} --nproc-per-node={processes} --max-restarts=…",
        restarts="All workers, from the last checkpoint on storage, at every failure or change of members.",
        bad_nodes="Not checked: a node that is bad fails the job again until someone removes it.",
        data_position="Goes on where it stopped only if the script saves its loader's state in the checkpoint.",
        possible=True,
        saving_seconds=failing.storage_seconds,
        interval_seconds=interval,
        recovery_seconds=recovery,
        goodput=productive,
    )


def _horovod(nodes: tuple[int, int], layout: Layout, hardware: Hardware, failing: Failing, to_host: float) -> Recovery:
    is_whole = layout.gpus == layout.data_parallel and layout.zero_stage == 0
    # The state comes back from a survivor's host memory the way it went there.
    recovery = failing.restart_seconds + to_host
    interval, productive = _goodput(failing, to_host, recovery)
    node = hardware.gpus_per_node
    return Recovery(
        name="horovod-elastic",
        launch=f"horovodrun --min-np {nodes[0] * node} --max-np {nodes[1] * node} --host-discovery-script …",
        restarts=(
            "The failed workers; survivors go back to the last commit in host memory."
            if is_whole
            else "Not possible: every rank must hold the whole state, and this plan divides it."
        ),
        bad_nodes="Failed hosts are blacklisted for the rest of the job, or for a set time.",
        data_position="ElasticSampler repartitions the samples of the epoch that no worker has recorded.",
        possible=is_whole,
        saving_seconds=to_host if is_whole else None,
        interval_seconds=interval if is_whole else None,
        recovery_seconds=recovery if is_whole else None,
        goodput=productive if is_whole else None,
    )


def _dlrover(nodes: tuple[int, int], layout: Layout, hardware: Hardware, failing: Failing, to_host: float) -> Recovery:
    # A lost node takes its host's memory along: what was stored behind the training's back is read, and it is as much
    # older than the newest copy as storing takes.
    recovery = failing.restart_seconds + 2.0 * failing.storage_seconds
    interval, productive = _goodput(failing, to_host, recovery)
    processes = min(layout.gpus, hardware.gpus_per_node)
    return Recovery(
        name="dlrover",
        launch=f"dlrover-run --network-check --nnodes={_range_text(nodes)} --nproc_per_node={processes} "
        "--max_restarts=…",
        restarts="The process after a software fault, from host memory; the node's pod after a fault of the hardware.",
        bad_nodes="Nodes are checked in pairs before training; the bad one is excluded and relaunched elsewhere.",
        data_position="The sampler's position is part of the checkpoint; a lost worker's shards are handed out again.",
        possible=True,
        saving_seconds=to_host,
        interval_seconds=interval,
        recovery_seconds=recovery,
        goodput=productive,
    )
