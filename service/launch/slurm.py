"""A Slurm batch script that trains a plan: one task a node, and in it `torchrun`, one process a GPU.

Source: Slurm's sbatch and srun (SLURM_JOB_NODELIST, SLURM_JOB_ID); scontrol expands a list of nodes to their names.
"""

from __future__ import annotations

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.plans import Layout
from plimsoll.service.launch.kubernetes import workload_name
from plimsoll.service.launch.kubernetes_training import MEETING_PORT, SCRIPT
from plimsoll.service.launch.words import shell_text


def slurm_script(model_name: str, layout: Layout, hardware: Hardware, plan_id: str) -> str | None:
    """Return the script for `sbatch`, None where the GPUs cannot be dealt out evenly over nodes."""
    gpus_per_node = min(layout.gpus, hardware.gpus_per_host)
    if layout.gpus % gpus_per_node:
        return None
    nodes = layout.gpus // gpus_per_node
    words = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={gpus_per_node}"]
    meeting = (
        ["--standalone"]
        if nodes == 1
        else ["--rdzv-id=$SLURM_JOB_ID", "--rdzv-backend=c10d", f"--rdzv-endpoint=$HEAD_NODE:{MEETING_PORT}"]
    )
    lines = [
        "#!/bin/bash",
        f"# Plan {plan_id}",
        f"#SBATCH --job-name={workload_name(model_name, plan_id)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={gpus_per_node}",
        "#SBATCH --exclusive",
        "set -euo pipefail",
        'HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun {' '.join(words + meeting)} {shell_text(SCRIPT)}",
    ]
    return "\n".join(lines)
