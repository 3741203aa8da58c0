"""What accelerate, and what it wraps a model in, are given to run on fake tensors as one rank of many.

Each change has its reason; all are undone as the block ends.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.patches import outside_fake_mode, replaced
from plimsoll.service.worker.stacks.accelerate.jobs import is_launched_on_many
from plimsoll.service.worker.training.foreign_code import environment, quiet


def load_accelerate() -> Any:
    """Return the package; a worker without it raises `NotYetAvailable`."""
    try:
        import accelerate
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "accelerate's steps are traced by its own code, which this worker does not have: install "
            "plimsoll[accelerate] there.",
            pointer="/layout/framework",
        ) from error
    return accelerate


@contextlib.contextmanager
def runnable_accelerate(job: TraceJob, rank: int) -> Iterator[None]:
    """Let accelerate run as that rank of the fake process group."""
    load_accelerate()
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet("accelerate"))
        stack.enter_context(_launched(job, rank))
        stack.enter_context(_meshes_with_ranks())
        stack.enter_context(_replicas_alone())
        yield


@contextlib.contextmanager
def _launched(job: TraceJob, rank: int) -> Iterator[None]:
    """Let accelerate take the process group for one of GPUs'."""
    from accelerate.state import DistributedType, PartialState

    found = ("fake", DistributedType.MULTI_GPU) if is_launched_on_many(job) else (None, DistributedType.NO)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": job.world_size,
        "LOCAL_RANK": 0,
        "ACCELERATE_TORCH_DEVICE": "cpu",
        # Names no GPU to DistributedDataParallel, where there is none.
        "ACCELERATE_BYPASS_DEVICE_MAP": "true",
        # What it sets itself as it makes a plugin.
        "ACCELERATE_USE_FSDP": "false",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    }
    prepared = replaced(PartialState, "_prepare_backend", lambda *_asked: found)
    with environment(**variables), prepared, _nothing_known():
        yield


@contextlib.contextmanager
def _nothing_known() -> Iterator[None]:
    """Let accelerate begin as in a new process: what it finds first, it keeps for good."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    known = [state._shared_state for state in (PartialState, AcceleratorState, GradientState)]
    before = [dict(each) for each in known]
    for each in known:
        each.clear()
    try:
        yield
    finally:
        for each, found in zip(known, before, strict=True):
            each.clear()
            each.update(found)


@contextlib.contextmanager
def _meshes_with_ranks() -> Iterator[None]:
    """Let FSDP2 make the mesh of all ranks, where it is given none, of numbers that it can read."""
    from torch.distributed.fsdp._fully_shard import _fully_shard

    default_mesh = vars(_fully_shard)["_init_default_mesh"]
    with replaced(_fully_shard, "_init_default_mesh", outside_fake_mode(default_mesh)):
        yield


@contextlib.contextmanager
def _replicas_alone() -> Iterator[None]:
    """Let DistributedDataParallel ask no other rank for its shapes, its values and its order of buckets.

    It sends these numbers from memory that fake tensors do not have. Built anew in the order of the gradients, its
    buckets would hold as much.
    """
    from torch.nn.parallel import distributed

    with (
        replaced(distributed, "_verify_param_shape_across_processes", lambda *_asked, **_named: True),
        replaced(distributed, "_sync_module_states", lambda *_asked, **_named: None),
        _buckets_as_built(),
    ):
        yield


@contextlib.contextmanager
def _buckets_as_built() -> Iterator[None]:
    reducer: Any = vars(dist)["Reducer"]
    original = reducer._rebuild_buckets
    reducer._rebuild_buckets = lambda _reducer: False
    try:
        yield
    finally:
        reducer._rebuild_buckets = original


@contextlib.contextmanager
def numbered(model: Any) -> Iterator[None]:
    """Give each parameter an address of its own, by which accelerate finds its shard for the optimizer."""
    parameters = list(model.parameters())
    for number, parameter in enumerate(parameters, 1):
        parameter.data_ptr = functools.partial(int, number)
    try:
        yield
    finally:
        for parameter in parameters:
            del parameter.data_ptr


def as_it_is(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Return a bucket of gradients as its own sum over ranks: the fake group's work has no result."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
