"""Megatron-Core's own rank, and what stands in for it: fused kernels, inputs gathered twice, grouped experts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.stacks.megatron.core.jobs import runs_megatron_core
from plimsoll.service.worker.stacks.megatron.core.package import load_megatron, runnable_megatron
from plimsoll.service.worker.stacks.megatron.fused_kernels import dummy_weight_gradients, fuse_layers
from plimsoll.service.worker.stacks.megatron.grouped_experts import group_experts
from plimsoll.service.worker.stacks.megatron.sequence_gathers import gather_again
from plimsoll.service.worker.training.engine import OwnRank
from plimsoll.service.worker.training.own_code import OwnCode


def _place_experts(model: Any, job: TraceJob, mesh: DeviceMesh) -> None:
    group_experts(
        model,
        group=mesh["expert"].get_group(),
        tensor_group=mesh["tensor"].get_group() if job.expert_tensor_parallel > 1 else None,
        per_token=job.experts_per_token,
    )


def _fuse_layers(model: Any, job: TraceJob) -> None:
    fuse_layers(model)
    if job.tensor_parallel > 1 and job.sequence_parallel:
        gather_again(model)


def _running(job: TraceJob, _rank: int) -> AbstractContextManager[object]:
    if runs_megatron_core(job):
        load_megatron()  # before the fake mode, in which a module's own tensors would be fake for good
    return nullcontext()


@contextlib.contextmanager
def _own_rank(job: TraceJob, stage: PipelineStage) -> Iterator[OwnRank]:
    from plimsoll.service.worker.stacks.megatron.core.rank import MegatronRank

    with runnable_megatron(job):
        yield MegatronRank(job, stage)


OWN_CODE = OwnCode(
    place_experts=_place_experts,
    fuse_layers=_fuse_layers,
    dummy_gradients=dummy_weight_gradients,
    running=_running,
    own_rank=_own_rank,
)
