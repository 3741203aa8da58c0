"""torchtune's own rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.stacks.torchtune.package import load_torchtune, runnable_torchtune
from plimsoll.service.worker.training.engine import OwnRank
from plimsoll.service.worker.training.own_code import OwnCode


def _running(_job: TraceJob, _rank: int) -> AbstractContextManager[object]:
    load_torchtune()  # before the fake mode, in which a module's own tensors would be fake for good
    return nullcontext()


@contextlib.contextmanager
def _own_rank(job: TraceJob, _stage: PipelineStage) -> Iterator[OwnRank]:
    from plimsoll.service.worker.stacks.torchtune.rank import TorchtuneRank

    with unset_fake_temporarily():  # a mesh reads its own ranks
        mesh = _mesh(job)
    with runnable_torchtune():
        yield TorchtuneRank(job, mesh)


def _mesh(job: TraceJob) -> DeviceMesh | None:
    """Return the ranks that weights are sharded over, in copies where there are several; None for a single rank."""
    if job.data_parallel == 1:
        return None
    if job.shard_group == job.data_parallel:
        return init_device_mesh("cpu", (job.data_parallel,), mesh_dim_names=("shard",))
    copies = job.data_parallel // job.shard_group
    return init_device_mesh("cpu", (copies, job.shard_group), mesh_dim_names=("replicate", "shard"))


OWN_CODE = OwnCode(running=_running, own_rank=_own_rank)
