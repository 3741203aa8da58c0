"""FSDP2: who holds which part of the parameters, gradients and optimizer states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from plimsoll.planners.sharding import Mesh
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.training.decoder_parts import decoder_layers, head, last_norm, token_embedding
from plimsoll.service.worker.training.parallel.experts import EXPERT_TENSORS, mixtures


def shard_fully(
    model: Any,
    mesh: DeviceMesh,
    job: TraceJob,
    *,
    policy: MixedPrecisionPolicy,
    wraps_vocabulary: bool,
    frees_root: bool,
    expert_mesh: DeviceMesh | None = None,
) -> None:
    """Shard the model over the data-parallel ranks, a decoder layer at a time.

    ZeRO-3 frees a layer's gathered parameters after its forward pass and gathers
    them again for the backward; ZeRO-2 keeps them in between. What no layer holds
    (embedding, last norm, head) is the root's unit, or with `wraps_vocabulary` two
    of their own, of which the last stays gathered from the forward to the
    backward pass. With `frees_root` the root too is freed after the forward pass; torch's own
    default keeps it. Experts that other ranks have others of are units of their own, over `expert_mesh`.
    """
    # A pipeline would gather anew for every micro-batch (torchtitan, models/llama3/infra/parallelize.py).
    reshard = job.zero_stage == 3 and job.pipeline_parallel == 1
    # Pinned or not, the host's memory is as much; a trace has none to pin.
    offload = CPUOffloadPolicy(pin_memory=False) if job.states_on_host else OffloadPolicy()
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload}
    embedding, layers = token_embedding(model), decoder_layers(model)
    if wraps_vocabulary and embedding is not None:
        fully_shard(embedding, reshard_after_forward=reshard, **settings)
    placement = _expert_placement(model, job)
    if expert_mesh is not None:
        for experts in mixtures(model):
            own = settings | {"mesh": expert_mesh, "shard_placement_fn": placement}
            fully_shard(experts, reshard_after_forward=reshard, **own)
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard, shard_placement_fn=placement, **settings)
    if wraps_vocabulary and isinstance(head(model), nn.Linear):
        fully_shard([last_norm(model), head(model)], reshard_after_forward=False, **settings)
    fully_shard(model, reshard_after_forward=reshard if frees_root else None, **settings)
    if expert_mesh is not None:
        _gather_ahead(layers)


def _expert_placement(model: Any, job: TraceJob) -> Callable[[nn.Parameter], Shard | None] | None:
    """Return where stacked experts are cut, as the stack's policy has it; None where all is cut along dimension 0."""
    held = [getattr(experts, name) for experts in mixtures(model) for name in EXPERT_TENSORS]
    if not held:
        return None
    mesh = Mesh(tensor=1, expert=job.expert_parallel, shard=job.shard_group // job.expert_parallel, replicas=1)
    policy = load_profile(job.framework).sharding_policy(job.zero_stage)
    dim = policy.expert_cut_dim(len(held[0]) * job.expert_parallel, mesh)
    stacked = {id(tensor) for tensor in held}
    return lambda parameter: Shard(dim) if id(parameter) in stacked else None


def _gather_ahead(layers: nn.ModuleList) -> None:
    """Name what each layer gathers ahead: the next one, or backwards the one before, and its experts.

    Source: torchtitan, models/llama4/infra/parallelize.py, `apply_fsdp`.
    """
    units: list[Any] = list(layers)
    for layer, following in itertools.pairwise(units):
        layer.set_modules_to_forward_prefetch(_units(following))
        following.set_modules_to_backward_prefetch(_units(layer))


def _units(layer: Any) -> list[Any]:
    experts = getattr(layer.mlp, "experts", None)
    return [layer] if experts is None else [layer, experts]
