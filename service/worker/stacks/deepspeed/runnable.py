"""What DeepSpeed's own code is given to run on fake tensors, as one rank of a job whose other ranks do not exist.

Each change has its reason; all are undone as the block ends. Of DeepSpeed's optimizers only the kernel is left out,
which writes in place and allocates nothing.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import ScalarsOfFakeTensors, environment, module_as_before, quiet

# Checks that every rank calls a collective for the same parameters, by asking the others.
ASKS_OTHER_RANKS = "assert_ints_same_as_other_ranks"
# Where DeepSpeed keeps what it knows of a job's processes, and where it puts its own `linear` at stage 3 for good.
CHANGED_MODULES = ("deepspeed.comm.comm", "deepspeed.utils.groups", "torch.nn.functional")


def load_deepspeed() -> Any:
    """Return the package; a worker without it raises `NotYetAvailable`."""
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "DeepSpeed's steps are traced by its own code, which this worker does not have: install "
            "plimsoll[deepspeed] there.",
            pointer="/layout/framework",
        ) from error
    return deepspeed


@contextlib.contextmanager
def runnable_deepspeed(rank: int, ranks: int) -> Iterator[Any]:
    """Give back DeepSpeed, able to run as that rank of a fake process group."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet("DeepSpeed"))
        # The accelerator is chosen once, as the package is imported: fake tensors say that they lie on the CPU.
        stack.enter_context(environment(DS_ACCELERATOR="cpu", RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=0))
        deepspeed = load_deepspeed()
        for module in CHANGED_MODULES:
            stack.enter_context(module_as_before(module))
        stack.enter_context(_alone())
        stack.enter_context(_kernels_in_place())
        stack.enter_context(ScalarsOfFakeTensors())
        yield deepspeed


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Ask no other rank for its values, and compile no shared memory for those of this host."""
    from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3

    with contextlib.ExitStack() as stack:
        # By name: as an attribute of its package it is torch's own module.
        backend = importlib.import_module("deepspeed.comm.torch")
        stack.enter_context(replaced(backend, "build_shm_op", lambda: None))
        for module in (stage3, partition_parameters, partitioned_param_coordinator):
            stack.enter_context(replaced(module, ASKS_OTHER_RANKS, lambda *_args: None))
        yield


@contextlib.contextmanager
def _kernels_in_place() -> Iterator[None]:
    """Let the fused optimizers' kernels, which only a GPU has, write nothing."""
    from deepspeed.ops.adam import fused_adam
    from deepspeed.ops.lion import fused_lion

    def kernel(*_args: Any) -> None:
        """Allocate nothing."""

    builder = SimpleNamespace(load=lambda: SimpleNamespace(multi_tensor_adam=kernel, multi_tensor_lion=kernel))
    with (
        replaced(fused_adam, "FusedAdamBuilder", lambda: builder),
        replaced(fused_lion, "FusedLionBuilder", lambda: builder),
    ):
        yield
