"""Megatron-Core's own rank, and what stands in for it: fused kernels, inputs gathered twice, grouped experts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.stacks.megatron.core.jobs import deals_parameters, runs_megatron_core
from plimsoll.service.worker.stacks.megatron.core.package import load_megatron, runnable_megatron
from plimsoll.service.worker.stacks.megatron.fused_kernels import dummy_weight_gradients, fuse_layers
from plimsoll.service.worker.stacks.megatron.grouped_experts import group_experts
from plimsoll.service.worker.stacks.megatron.sequence_gathers import gather_again
from plimsoll.service.worker.training.own_code import OwnCode
from plimsoll.service.worker.training.rank import process_group_of

if TYPE_CHECKING:
    from plimsoll.service.worker.stacks.megatron.core.rank import MegatronRank


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
def _own_rank(job: TraceJob, stage: PipelineStage) -> Iterator[MegatronRank]:
    from plimsoll.service.worker.stacks.megatron.core.rank import MegatronRank

    with runnable_megatron(job):
        yield MegatronRank(job, stage)


def _place_in_stage(job: TraceJob, stage: PipelineStage) -> int:
    """Return which of a stage's ranks has the most: Megatron-Core tells it where parameters are dealt out whole."""
    if not deals_parameters(job):
        return 0
    first = stage.number * (job.world_size // job.pipeline_parallel)
    with (
        traceable_torch(),
        _running(job, first),
        process_group_of(job.world_size, rank=first),
        FakeTensorMode(allow_non_fake_inputs=True),
        _own_rank(job, stage) as rank,
    ):
        return rank.fullest_rank


OWN_CODE = OwnCode(
    place_experts=_place_experts,
    fuse_layers=_fuse_layers,
    dummy_gradients=dummy_weight_gradients,
    running=_running,
    own_rank=_own_rank,
    place_in_stage=_place_in_stage,
)
