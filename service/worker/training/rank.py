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

from plimsoll.service.worker.stacks.deepspeed.zero.engine import zero_engine
from plimsoll.service.worker.stacks.deepspeed.zero.settings import ZeroEngine
from plimsoll.service.worker.stacks.fsdp2.eight_bit import cast_products
from plimsoll.service.worker.stacks.megatron.grouped_experts import group_experts
from plimsoll.service.worker.stacks.megatron.sequence_gathers import gather_again
from plimsoll.service.worker.training.activation_offload import keeping_activations
from plimsoll.service.worker.training.building import traced_model
from plimsoll.service.worker.training.decoder_parts import has_tied_head
from plimsoll.service.worker.training.job import PipelineStage, TraceJob
from plimsoll.service.worker.training.kernels.eight_bit_jobs import FP8_MIXED
from plimsoll.service.worker.training.kernels.fused_kernels import dummy_weight_gradients, fuse_layers
from plimsoll.service.worker.training.kernels.fused_loss import fuse_loss
from plimsoll.service.worker.training.kernels.liger_kernels import put_liger_kernels
from plimsoll.service.worker.training.optimizers import MasterWeightOptimizer, Optimizer, model_optimizer
from plimsoll.service.worker.training.parallel.experts import deal_experts, expert_mesh, expert_parameters
from plimsoll.service.worker.training.parallel.messages import MessageBuffers
from plimsoll.service.worker.training.parallel.pipeline import cut_to_stage
from plimsoll.service.worker.training.parallel.ring_attention import attend_over_ranks, context_mesh
from plimsoll.service.worker.training.parallel.sharding import shard_fully
from plimsoll.service.worker.training.parallel.tensor_parallel import split_over_tensor_ranks
from plimsoll.service.worker.training.recompute import recompute_activations
from plimsoll.service.worker.training.stack import Stack
from plimsoll.service.worker.training.traceable import is_fully_sharded, keeps_master_weights, refuse_untraced_sharding

# Sizes of DistributedDataParallel's first and later buckets
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES and `bucket_cap_mb`'s default).
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(slots=True, kw_only=True)
class Rank:
    """A rank's parts. `buckets` are the gradient buckets of replicated data parallelism.

    `model` is a `ModuleList` of its chunks where an interleaved schedule gives it several.
    `dummy_gradients` stand in for those that fused kernels add up where they accumulate, `messages` are a pipeline's.
    `keeping` is the context of every forward pass. `zero` is the optimizer where it takes part in the passes.
    """

    model: Any
    optimizer: Optimizer
    buckets: list[torch.Tensor]
    dummy_gradients: list[torch.Tensor]
    gathers_logits: bool
    keeping: contextlib.AbstractContextManager[object]
    states_on_host: bool
    messages: MessageBuffers = field(default_factory=MessageBuffers)
    zero: ZeroEngine | None = None

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
    """Return the stage's first rank, which holds the largest shard; call it in fake mode within the process group.

    Raises `NotYetAvailable` for a sharding that the stack does not trace.
    """
    return equipped_rank(job, stack, sharded_model(job, stack, mesh, stage))


def sharded_model(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage) -> Any:
    """Return this rank's part of a stage's model, or parts; raises `NotYetAvailable` as `build_rank` does."""
    refuse_untraced_sharding(job, stack)
    chunks = [_sharded_chunk(job, stack, mesh, chunk) for chunk in job.chunks_of(stage)]
    return chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)


def _sharded_chunk(job: TraceJob, stack: Stack, mesh: DeviceMesh, stage: PipelineStage) -> Any:
    model = traced_model(job, stack)
    is_tied = has_tied_head(model)
    groups_experts = stack.has_fused_kernels and job.has_experts
    experts = expert_mesh(job, mesh.device_type) if job.expert_parallel > 1 or groups_experts else None
    if experts is not None and groups_experts:
        group_experts(
            model,
            group=experts["expert"].get_group(),
            tensor_group=experts["tensor"].get_group() if job.expert_tensor_parallel > 1 else None,
            per_token=job.experts_per_token,
        )
    elif experts is not None:
        deal_experts(model, experts["expert"].get_group())
    if job.context_parallel > 1:
        attend_over_ranks(model, context_mesh(job, mesh.device_type), tokens_first=stack.has_fused_kernels)
    cut_to_stage(model, stage)
    if job.precision == FP8_MIXED:
        cast_products(model)
    if job.tensor_parallel > 1:
        split_over_tensor_ranks(
            model,
            mesh["tensor"],
            sequence_parallel=job.sequence_parallel,
            gather_logits=gathers_logits(job, stack),
        )
        if is_tied:  # splitting replaced both
            model.lm_head.weight = model.model.embed_tokens.weight
    if job.fused_cross_entropy:
        fuse_loss(model)
    if stack.has_liger_kernels:
        put_liger_kernels(model)
    if stack.has_fused_kernels:
        fuse_layers(model)
        if job.tensor_parallel > 1 and job.sequence_parallel:
            gather_again(model)
    recompute_activations(model, job, stack.selective)
    if is_fully_sharded(job):
        own_units = stack.wraps_vocabulary and not is_tied and not job.fused_cross_entropy
        shard_fully(
            model,
            _data_mesh(mesh, job),
            job,
            wraps_vocabulary=own_units,
            frees_root=not stack.wraps_vocabulary,
            expert_mesh=None if experts is None else experts["expert_shard"],
        )
    return model


def equipped_rank(job: TraceJob, stack: Stack, model: Any) -> Rank:
    """Return a rank's part of the model with all that a step needs besides."""
    zero = zero_engine(job, stack, model) if stack.has_zero_engine else None
    rank = Rank(
        model=model,
        optimizer=zero or _optimizer(job, stack, model),
        zero=zero,
        buckets=_gradient_buckets(job, stack, model),
        dummy_gradients=[],
        gathers_logits=gathers_logits(job, stack),
        keeping=keeping_activations(job, model),
        states_on_host=job.states_on_host,
    )
    if stack.has_fused_kernels:
        rank.dummy_gradients = dummy_weight_gradients(rank.chunks)
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
    if not stack.has_gradient_buckets or is_fully_sharded(job) or job.data_parallel == 1:
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
