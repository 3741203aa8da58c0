"""How many processes a training launcher starts, on how many nodes.

Source: torch/distributed/run.py. Each process takes the GPU of its local rank, so that one without a GPU of its own
ends the job (torch.cuda.set_device: "invalid device ordinal", or NCCL: "Duplicate GPU detected"). Launchers of stacks
say the same by the fields `each` node, `all` and `nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.service.workloads.commands.flags import Flag, read_flags
from plimsoll.service.workloads.objects.workloads import TORCHRUN_NODES, TORCHRUN_PROCESSES

TORCHRUN_FLAGS = (
    Flag(names=("nproc-per-node",), field="each", form="text"),
    Flag(names=("nnodes",), field="nodes", form="whole"),
)
TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
TORCHRUN = "torchrun"
# torchrun's options as variables (torch/distributed/argparse_util.py), and what takes the number of GPUs.
TORCHRUN_VARIABLES = {TORCHRUN_NODES: "nnodes", TORCHRUN_PROCESSES: "nproc-per-node"}
BY_GPUS = ("auto", "gpu")
# With these no process takes a GPU.
WITHOUT_GPUS = frozenset({"--cpu", "--use-cpu", "--no-cuda"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Processes of a launcher on each of its nodes."""

    each: int
    nodes: int

    @property
    def all(self) -> int:
        """Return the processes on all nodes."""
        return self.each * self.nodes


def launched_ranks(
    words: tuple[str, ...], env: Mapping[str, str], gpus_per_pod: int, launchers: Mapping[str, Sequence[Flag]]
) -> Ranks | None:
    """Return the processes that a launcher starts in a pod of these variables and GPUs.

    None where it is told no number of them, or they take no GPUs. `launchers` are those
    besides torchrun, by their programs' names.
    """
    program = words[0].rpartition("/")[2]
    flags = (
        TORCHRUN_FLAGS if set(words[1:3]) & set(TORCH_MODULES) else {TORCHRUN: TORCHRUN_FLAGS, **launchers}.get(program)
    )
    if flags is None or WITHOUT_GPUS & {word.replace("_", "-") for word in words}:
        return None
    given = words[1:]
    if flags is TORCHRUN_FLAGS:
        given = (
            *(f"--{name}={env[variable]}" for variable, name in TORCHRUN_VARIABLES.items() if variable in env),
            *given,
        )
    read = read_flags(given, flags)
    nodes, each = int(read.values.get("nodes", 1)), _each(read.values.get("each", 0), gpus_per_pod)
    if "all" in read.values and nodes:
        each = int(read.values["all"]) // nodes
    # A number that a variable holds ("$NNODES", "1:4") is a problem of reading, and none of the job's.
    return None if read.problems or not each or not nodes else Ranks(each=each, nodes=nodes)


def mpi_ranks(processes: int | None, pods: int) -> Ranks | None:
    """Return the processes that `mpirun` starts over the pods, None where they do not share them evenly."""
    if not processes or not pods or processes % pods:
        return None
    return Ranks(each=processes // pods, nodes=pods)


def _each(told: str | float, gpus_per_pod: int) -> int:
    """Return torchrun's processes of a node: all its GPUs by `auto` and `gpu`, 0 for what is no number."""
    if told in BY_GPUS:
        return gpus_per_pod
    return int(told) if str(told).isdecimal() else 0


def too_many_processes(ranks: Ranks, gpus_per_pod: int) -> str | None:
    """Return why a launcher's processes cannot all have a GPU, None where they can."""
    if ranks.each <= gpus_per_pod:
        return None
    gpus = f"{gpus_per_pod} GPU{'s' if gpus_per_pod > 1 else ''}"
    return f"it starts {ranks.each} processes on each node, and a pod has {gpus}: start {gpus_per_pod}, or ask for more"
