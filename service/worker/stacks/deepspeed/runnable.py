"""What DeepSpeed's own code is given to run on fake tensors, as one rank of a job whose other ranks do not exist.

Each change has its reason; all are undone as the block ends. Of DeepSpeed's optimizers only the kernel is left out,
which writes in place and allocates nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.recording.host_memory import host_apart
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.training.foreign_code import ScalarsOfFakeTensors, environment, module_as_before, quiet

# Checks that every rank calls a collective for the same parameters, by asking the others.
ASKS_OTHER_RANKS = "assert_ints_same_as_other_ranks"
# Where DeepSpeed keeps what it knows of a job's processes, and where it puts its own `linear` at stage 3 for good.
CHANGED_MODULES = ("deepspeed.comm.comm", "deepspeed.utils.groups", "torch.nn.functional")
# Modules of deepspeed.runtime that open drives, or make folders on them.
SWAPPERS = (
    "swap_tensor.optimizer_utils",
    "swap_tensor.partitioned_optimizer_swapper",
    "swap_tensor.partitioned_param_swapper",
    "swap_tensor.pipelined_optimizer_swapper",
    "zero.stage3",
)
# Builders of the optimizers' kernels, and the kernels' functions, by their module in deepspeed.ops.
KERNELS = {
    "adam.fused_adam": ("FusedAdamBuilder", ("multi_tensor_adam",)),
    "lion.fused_lion": ("FusedLionBuilder", ("multi_tensor_lion",)),
    "adam.cpu_adam": ("CPUAdamBuilder", ("create_adam", "adam_update", "destroy_adam")),
    "lion.cpu_lion": ("CPULionBuilder", ("create_lion", "lion_update", "destroy_lion")),
}


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
        # The accelerator that DeepSpeed looks for as it is imported.
        stack.enter_context(environment(DS_ACCELERATOR="cpu", RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=0))
        deepspeed = load_deepspeed()
        for module in CHANGED_MODULES:
            stack.enter_context(module_as_before(module))
        stack.enter_context(_device_apart())
        stack.enter_context(_alone())
        stack.enter_context(_without_reports())
        stack.enter_context(_kernels_in_place())
        stack.enter_context(_of_no_processor())
        stack.enter_context(_no_files())
        stack.enter_context(ScalarsOfFakeTensors())
        yield deepspeed


@contextlib.contextmanager
def _device_apart() -> Iterator[None]:
    """Give DeepSpeed a device that is not its host."""
    from deepspeed.accelerator import real_accelerator
    from deepspeed.runtime.zero import linear

    from plimsoll.service.worker.stacks.deepspeed.accelerator import TracedAccelerator

    of_the_host = real_accelerator.get_accelerator()
    with (
        host_apart(),
        replaced(real_accelerator, "ds_accelerator", TracedAccelerator()),
        # It is asked there for autocast's type of device alone, which has no number.
        replaced(linear, "get_accelerator", lambda: of_the_host),
    ):
        yield


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
def _without_reports() -> Iterator[None]:
    """Print nothing of this worker's memory, which one of the optimizers reports on standard output as it is made."""
    from deepspeed.runtime import bf16_optimizer

    with replaced(bf16_optimizer, "see_memory_usage", lambda *_args, **_named: None):
        yield


@contextlib.contextmanager
def _kernels_in_place() -> Iterator[None]:
    """Let the optimizers' kernels, a GPU's and those that are compiled for a host's processors, write nothing."""

    def kernel(*_args: Any) -> None:
        """Allocate nothing."""

    with contextlib.ExitStack() as stack:
        for name, (builder, functions) in KERNELS.items():
            module = importlib.import_module(f"deepspeed.ops.{name}")
            compiled = SimpleNamespace(**dict.fromkeys(functions, kernel))
            stack.enter_context(
                replaced(module, builder, lambda compiled=compiled: SimpleNamespace(load=lambda: compiled))
            )
        yield


@contextlib.contextmanager
def _of_no_processor() -> Iterator[None]:
    """Look up no processor: DeepSpeed's Adam of the host does for one warning, and takes a second for it each time."""
    with replaced(importlib.import_module("cpuinfo"), "get_cpu_info", dict):
        yield


@contextlib.contextmanager
def _no_files() -> Iterator[None]:
    """Let what waits on drives be written to no file, and no folder of this worker's be made or emptied."""
    from plimsoll.service.worker.stacks.deepspeed.drives import TracedDrives

    def nothing(*_args: Any, **_named: Any) -> None:
        """Leave the folder alone."""

    builder = SimpleNamespace(load=lambda **_named: SimpleNamespace(aio_handle=TracedDrives))
    in_place = {
        "AsyncIOBuilder": lambda: builder,
        "os": SimpleNamespace(path=os.path, makedirs=nothing),
        "shutil": SimpleNamespace(rmtree=nothing),
    }
    with contextlib.ExitStack() as stack:
        for name in SWAPPERS:
            module = importlib.import_module(f"deepspeed.runtime.{name}")
            for used in in_place.keys() & vars(module).keys():
                stack.enter_context(replaced(module, used, in_place[used]))
        yield
