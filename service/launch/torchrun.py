"""`torchrun`: one process for each GPU, on one node or on several that meet at one of them.

Options: torch 2.13, `torch/distributed/run.py`.
"""

from __future__ import annotations

from plimsoll.service.launch.script import Script
from plimsoll.service.launch.training import MAX_RESTARTS, Target, TrainingLaunch, given_reasons, uneven_nodes

RENDEZVOUS_PORT = 29_500  # torch.distributed.run's own default
# The reader names the node where the processes meet.
HEAD_NODE = "$HEAD_NODE"
JOB_ID = "plimsoll"


def torchrun(script: Script) -> Target:
    """Return the command: with a range of nodes where every number of them runs the plan."""
    return Target(
        name="torchrun",
        is_starter=True,
        why_not=lambda launch: given_reasons(uneven_nodes(launch)),
        write=lambda launch: script.started_by(launch, _words(launch, script.nodes_text(launch))),
    )


def _words(launch: TrainingLaunch, nodes: str) -> list[str]:
    each = [f"--nproc-per-node={launch.processes_per_node}", f"--max-restarts={MAX_RESTARTS}"]
    if nodes == "1":
        return ["torchrun", "--nnodes=1", *each, "--standalone"]
    endpoint = f"--rdzv-endpoint={HEAD_NODE}:{RENDEZVOUS_PORT}"
    return ["torchrun", f"--nnodes={nodes}", *each, f"--rdzv-id={JOB_ID}", "--rdzv-backend=c10d", endpoint]
