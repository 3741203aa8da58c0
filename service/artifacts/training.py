"""Launch files of a training plan: what a person types, or a program reads, to run it.

Only what can be made true is made: every degree the plan fixed, and nothing
where a program has no option for what was planned.
"""

from __future__ import annotations

from planners.hardware import Hardware
from planners.plans import Layout

RENDEZVOUS_PORT = 29_500  # torch.distributed.run's own default


def training_artifacts(layout: Layout, hardware: Hardware) -> dict[str, str]:
    """Return the launch files of a training plan: `torchrun`, starting one process for each GPU.

    The training script is the reader's own. On several nodes `HEAD_NODE` names
    the one where the processes meet.
    """
    processes = min(layout.gpus, hardware.gpus_per_node)
    if layout.gpus % processes:
        return {}
    nodes = layout.gpus // processes
    words = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={processes}"]
    if nodes == 1:
        words.append("--standalone")
    else:
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=$HEAD_NODE:{RENDEZVOUS_PORT}"]
    return {"torchrun": " ".join([*words, "train.py"])}
