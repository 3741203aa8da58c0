"""`torchrun`: one process for each GPU, on one node or on several that meet at one of them.

Options: torch 2.13, `torch/distributed/run.py`.
"""

from __future__ import annotations

from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.launch.options import option_lines
from plimsoll.service.launch.training import (
    MAX_RESTARTS,
    Target,
    TrainingLaunch,
    given_reasons,
    of_stacks,
    uneven_nodes,
)
from plimsoll.service.stacks.fsdp2 import launch as torchtitan
from plimsoll.service.stacks.megatron import launch as megatron
from plimsoll.service.stacks.megatron_deepspeed import launch as megatron_deepspeed
from plimsoll.service.stacks.nanotron.launch import NANOTRON

RENDEZVOUS_PORT = 29_500  # torch.distributed.run's own default
# The reader names the node where the processes meet.
HEAD_NODE = "$HEAD_NODE"
JOB_ID = "plimsoll"


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    return given_reasons(uneven_nodes(launch))


def torchrun_command(launch: TrainingLaunch) -> str:
    """Return the command: with a range of nodes where every number of them runs the plan.

    The script is the stack's own where it has one that is made for its launch
    file, else `train.py`, which is the reader's.
    """
    words = [f"--nproc-per-node={launch.processes_per_node}", f"--max-restarts={MAX_RESTARTS}"]
    nodes = node_range_text(launch)
    if nodes == "1":
        words = ["--nnodes=1", *words, "--standalone"]
    else:
        endpoint = f"--rdzv-endpoint={HEAD_NODE}:{RENDEZVOUS_PORT}"
        words = [f"--nnodes={nodes}", *words, f"--rdzv-id={JOB_ID}", "--rdzv-backend=c10d", endpoint]
    return " ".join([*environment(launch), "torchrun", *words, *script(launch)])


def node_range_text(launch: TrainingLaunch) -> str:
    """Return the number of nodes, or the fewest and the most with a colon between."""
    if not launch.is_elastic:
        return str(launch.nodes)
    fewest, most = launch.elastic_nodes
    return f"{fewest}:{most}"


def environment(launch: TrainingLaunch) -> list[str]:
    """Return the variables that must be set: Megatron-LM insists that kernels and messages keep their order.

    Source: megatron/training/arguments.py, validate_args.
    """
    layout = launch.layout
    divides = layout.tensor_parallel > 1 or layout.context_parallel > 1
    return ["CUDA_DEVICE_MAX_CONNECTIONS=1"] if layout.framework == "megatron" and divides else []


def script(launch: TrainingLaunch) -> list[str]:
    """Return what every process runs, with its arguments."""
    framework = launch.layout.framework
    if torchtitan.TORCHTITAN.is_for(launch) and not torchtitan.why_not(launch):
        return ["-m", "torchtitan.train", "--job.config_file", "torchtitan.toml"]
    if framework == "megatron" and not megatron.why_not(launch):
        return ["pretrain_gpt.py", *option_lines(megatron.megatron_options(launch))]
    if framework == "nanotron" and not NANOTRON.why_not(launch):
        return ["run_train.py", "--config-file", "nanotron.yaml"]
    if framework == "megatron-deepspeed" and not megatron_deepspeed.why_not(launch):
        return ["pretrain_gpt.py", *option_lines(megatron_deepspeed.megatron_deepspeed_options(launch))]
    return ["train.py"]


TORCHRUN = Target(name="torchrun", is_for=of_stacks(*stack_names()), why_not=_why_not, write=torchrun_command)
