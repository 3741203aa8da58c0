"""One rank of a job: its model, sharded, with its optimizer, ready to step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import has_own_experts, is_fully_sharded, keeps_master_weights
from plimsoll.service.worker.training.activation_offload import keeping_activations
from plimsoll.service.worker.training.building import traced_model
from plimsoll.service.worker.training.decoder_parts import has_tied_head
from plimsoll.service.worker.training.engine import Engine
from plimsoll.service.worker.training.kernels.fused_loss import fuse_loss
from plimsoll.service.worker.training.kernels.liger_kernels import put_liger_kernels
from plimsoll.service.worker.training.optimizers import MasterWeightOptimizer, Optimizer, model_optimizer
from plimsoll.service.worker.training.own_code import own_code_of
from plimsoll.service.worker.training.parallel.experts import expert_mesh, expert_parameters
from plimsoll.service.worker.training.parallel.messages import MessageBuffers
from plimsoll.service.worker.training.parallel.pipeline import cut_to_stage
from plimsoll.service.worker.training.parallel.ring_attention import attend_over_ranks, context_mesh
from plimsoll.service.worker.training.parallel.sharding import shard_fully
from plimsoll.service.worker.training.parallel.tensor_parallel import split_over_tensor_ranks
from plimsoll.service.worker.training.precision import sharding_policy
from plimsoll.service.worker.training.recompute import recompute_activations

# Sizes of DistributedDataParallel's first and later buckets
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES and `bucket_cap_mb`'s default).
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank's parts. `buckets` are the gradient buckets of replicated data parallelism.

    `model` is a `ModuleList` of its chunks where an interleaved schedule gives it several.
    `dummy_gradients` stand in for those that fused kernels add up where they accumulate, `messages` are a pipeline's.
    `keeping` is the context of every forward pass. `engine` is the optimizer where it takes part in the passes;
    it says itself what lies on the host.
    """

    model: Any
    optimizer: Optimizer
    buckets: list[torch.Tensor]
    dummy_gradients: list[torch.Tensor]
    gathers_logits: bool
    keeping: contextlib.AbstractContextManager[object]
    states_on_host: bool
    messages: MessageBuffers = field(default_factory=MessageBuffers)
    engine: Engine | None = None

    @property
    def chunks(self) -> tuple[Any, ...]:
        """Return the rank's parts of the model in their order; without an interleaved schedule the one."""
        return tuple(self.model) if isinstance(self.model, nn.ModuleList) else (self.model,)


@contextlib.contextmanager
def process_group_of(world_size: int, *, rank: int = 0) -> Iterator[None]:
    """Pretend to be one rank of a job of that many; collectives move nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        # DTensor remembers the layouts of results with their meshes, whose groups are gone.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def build_rank(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage) -> Rank:
    """Return the stage's first rank, which holds the largest shard; call it in fake mode within the process group."""
    model = whole_model(job, stack) if stack.runs_own_wrapper(job) else sharded_model(job, stack, mesh, stage)
    return equipped_rank(job, stack, model, engine=own_code_of(stack).engine(job, model))


def whole_model(job: TraceJob, stack: Stack) -> Any:
    """Return the model with its kernels, for the stack's own code to wrap."""
    model = traced_model(job, stack)
    _put_kernels(model, job, stack)
    return model


def sharded_model(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage) -> Any:
    """Return this rank's part of a stage's model, or parts."""
    chunks = [_sharded_chunk(job, stack, mesh, chunk) for chunk in job.chunks_of(stage)]
    return chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)


def _sharded_chunk(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage) -> Any:
    model, own = traced_model(job, stack), own_code_of(stack)
    is_tied = has_tied_head(model)
    experts = expert_mesh(job, mesh.device_type) if has_own_experts(job, stack) else None
    if experts is not None:
        own.place_experts(model, job, experts)
    if job.context_parallel > 1:
        attend_over_ranks(model, context_mesh(job, mesh.device_type), tokens_first=stack.has_fused_kernels)
    cut_to_stage(model, stage)
    own.cast_products(model, job)
    if job.tensor_parallel > 1:
        split_over_tensor_ranks(
            model,
            mesh["tensor"],
            sequence_parallel=job.sequence_parallel,
            gather_logits=gathers_logits(job, stack),
            styles=own.layer_styles(job),
        )
        if is_tied:  # splitting replaced both
            model.lm_head.weight = model.model.embed_tokens.weight
    _put_kernels(model, job, stack)
    recompute_activations(model, job, stack)
    if is_fully_sharded(job, stack):
        # accelerate asks for no more than that the norm runs before the head's weights are read.
        has_head_unit = bool(stack.own_wrapper) or not job.fused_cross_entropy
        own_units = stack.wraps_vocabulary and not is_tied and has_head_unit
        shard_fully(
            model,
            _data_mesh(mesh, job),
            job,
            policy=sharding_policy(job, stack),
            wraps_vocabulary=own_units,
            frees_root=not stack.wraps_vocabulary,
            expert_mesh=None if experts is None else experts["expert_shard"],
        )
    return model


def _put_kernels(model: Any, job: TraceJob, stack: Stack) -> None:
    if job.fused_cross_entropy:
        fuse_loss(model)
    if stack.has_liger_kernels:
        put_liger_kernels(model)
    own_code_of(stack).fuse_layers(model, job)


def equipped_rank(job: TraceJob, stack: Stack, model: Any, *, engine: Engine | None = None) -> Rank:
    """Return a rank's part of the model with all that a step needs besides; an engine is of the stack's own code."""
    rank = Rank(
        model=model,
        optimizer=engine or _optimizer(job, stack, model),
        engine=engine,
        buckets=_gradient_buckets(job, stack, model) if engine is None else [],
        dummy_gradients=[],
        gathers_logits=gathers_logits(job, stack),
        keeping=keeping_activations(job, model),
        states_on_host=job.states_on_host and not stack.has_own_engine,
    )
    rank.dummy_gradients = own_code_of(stack).dummy_gradients(rank.chunks)
    return rank


def gathers_logits(job: TraceJob, stack: Stack) -> bool:
    """Return whether every rank has the logits of the whole vocabulary."""
    return job.tensor_parallel == 1 or stack.gathers_logits


def device_mesh(job: TraceJob, device_type: str = "cpu") -> DeviceMesh:
    """Return the mesh of the job's ranks; call it outside the fake mode, for it reads its own ranks."""
    if job.shard_group < job.data_parallel:
        copies = job.data_parallel // job.shard_group
        return init_device_mesh(
            device_type,
            (job.pipeline_parallel, copies, job.shard_ranks, job.tensor_parallel),
            mesh_dim_names=("pipeline", "replicate", "shard", "tensor"),
        )
    shape = (job.pipeline_parallel, job.shard_ranks, job.tensor_parallel)
    return init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "shard", "tensor"))


def _data_mesh(mesh: DeviceMesh, job: TraceJob) -> DeviceMesh:
    return mesh["replicate", "shard"] if job.shard_group < job.data_parallel else mesh["shard"]


def learning_parameters(model: Any) -> list[nn.Parameter]:
    """Return what the optimizer changes: all but what is frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _optimizer(job: TraceJob, stack: Stack, model: Any) -> Optimizer:
    if not keeps_master_weights(job, stack):
        return model_optimizer(job.optimizer, model)
    is_sharded = job.zero_stage == 1
    ranks = job.data_parallel * job.context_parallel
    chunks = model if isinstance(model, nn.ModuleList) else [model]
    of_experts = {id(parameter) for chunk in chunks for parameter in expert_parameters(chunk)}
    parameters = learning_parameters(model)
    expert_ranks = job.expert_copies if of_experts and job.expert_parallel > 1 else ranks
    return MasterWeightOptimizer(
        job.optimizer,
        parameters,
        shards=[(expert_ranks if id(each) in of_experts else ranks) if is_sharded else 1 for each in parameters],
        fp32_gradients=stack.main_gradients_in_fp32,
    )


def _gradient_buckets(job: TraceJob, stack: Stack, model: Any) -> list[torch.Tensor]:
    """Return DistributedDataParallel's flat buckets, filled as it fills them: from the last parameter on."""
    if not stack.has_gradient_buckets or is_fully_sharded(job, stack) or job.data_parallel == 1:
        return []
    buckets: list[torch.Tensor] = []
    elements, limit_bytes = 0, FIRST_BUCKET_BYTES
    parameters = learning_parameters(model)
    for parameter in reversed(parameters):
        elements += parameter.to_local().numel() if hasattr(parameter, "to_local") else parameter.numel()
        if elements * parameter.element_size() >= limit_bytes:
            buckets.append(torch.empty(elements, dtype=parameter.dtype))
            elements, limit_bytes = 0, BUCKET_BYTES
    if elements:
        buckets.append(torch.empty(elements, dtype=parameters[0].dtype))
    return buckets
