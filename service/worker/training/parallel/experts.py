"""Expert parallelism: which ranks have which experts of a mixture, and tokens exchanged among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.training.decoder_parts import decoder_layers

# The two matrices of all experts of a layer, and the biases of some: transformers' own names.
EXPERT_TENSORS = ("gate_up_proj", "down_proj")
EXPERT_BIASES = ("gate_up_proj_bias", "down_proj_bias")


def expert_mesh(job: TraceJob, device_type: str) -> DeviceMesh:
    """Return the job's ranks as its experts see them.

    `expert` ranks hold different experts and `expert_shard` ranks the same ones;
    neighbours share experts (torchtitan, distributed/parallel_dims.py). Tensor-parallel ranks have a part of
    each expert, or are among those others (Megatron-Core, parallel_state.py, `expert_tensor_parallel_size`).
    """
    shape = (
        job.pipeline_parallel,
        job.expert_copies,
        job.expert_parallel,
        job.expert_tensor_parallel,
    )
    with unset_fake_temporarily():
        return init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "expert_shard", "expert", "tensor"))


def mixtures(model: Any) -> Iterator[Any]:
    """Yield the experts of every layer that has any."""
    for layer in decoder_layers(model):
        experts = getattr(getattr(layer, "mlp", None), "experts", None)
        if experts is not None:
            yield experts


def one_expert_each(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the matrices of one expert of every mixture, with the names of the tensors that hold all."""
    for experts in mixtures(model):
        yield from ((name, getattr(experts, name)[0]) for name in EXPERT_TENSORS)


def tensors_of_all(experts: Any) -> tuple[str, ...]:
    """Return the names of the tensors that hold something of each expert: matrices, and biases where there are any."""
    return (*EXPERT_TENSORS, *(name for name in EXPERT_BIASES if hasattr(experts, name)))


def expert_parameters(model: Any) -> Iterator[nn.Parameter]:
    """Yield the matrices and biases of the experts that a rank holds."""
    for experts in mixtures(model):
        yield from (getattr(experts, name) for name in tensors_of_all(experts))


def has_dispatcher(layer: Any) -> bool:
    """Return whether a layer's mixture sends its tokens by a dispatcher of its stack's, and is divided already."""
    return hasattr(layer.mlp, "dispatcher")


def exchanged(tokens: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return what the other ranks sent, as many tokens from each as to each; the last takes what does not divide."""
    each, rest = divmod(tokens.size(0), group.size())
    splits = [each] * (group.size() - 1) + [each + rest]
    exchanged: torch.Tensor = all_to_all_single_autograd(tokens, splits, splits, group)
    return exchanged
