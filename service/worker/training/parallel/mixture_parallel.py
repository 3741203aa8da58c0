"""Tensor and sequence parallelism of a mixture of experts, as DTensor.

Source: pytorch/torchtitan, models/llama4/infra/parallelize.py, `apply_moe_ep_tp`, and distributed/expert_parallel.py,
`TensorParallel`: a mixture sees the whole sequence as a plain tensor, its router stands whole on every rank, every
expert and the shared one are cut like any feed-forward, and the ranks' parts of the sum are added up as they are
scattered by token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInputOutput,
    RowwiseParallel,
)

SEQUENCE_DIM = 1
LOCAL_EXPERTS = "plimsoll_local"
# transformers' two tensors of all experts [expert, out, in], and the dimension that is cut.
CUT_DIMS = {"gate_up_proj": 1, "down_proj": 2}


class CutExperts(ParallelStyle):
    """Experts of which every rank has a part of each."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, dim in CUT_DIMS.items():
            whole = getattr(module, name)
            setattr(module, name, nn.Parameter(distribute_tensor(whole, device_mesh, [Shard(dim)])))
        return module


class WholeRouter(ParallelStyle):
    """A router that every rank has whole, and that chooses for the whole sequence."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def with_local_outputs(_module: nn.Module, outputs: Any, _mesh: DeviceMesh) -> Any:
            return tuple(each.to_local() if isinstance(each, DTensor) else each for each in outputs)

        def with_whole_input(_module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(each, mesh, [Replicate()], run_check=False) for each in inputs)

        return distribute_module(module, device_mesh, input_fn=with_whole_input, output_fn=with_local_outputs)


def mixture_plan(mixture: nn.Module) -> dict[str, ParallelStyle]:
    """Return how the parts of a layer's mixture are parallel."""
    plan: dict[str, ParallelStyle] = {
        "mlp": PrepareModuleInputOutput(
            input_layouts=(Shard(SEQUENCE_DIM),),
            desired_input_layouts=(Replicate(),),
            use_local_input=True,
            output_layouts=(Partial(),),
            desired_output_layouts=(Shard(SEQUENCE_DIM),),
        ),
        "mlp.gate": WholeRouter(),
        "mlp.experts": CutExperts(),
    }
    if hasattr(mixture, "shared_experts"):
        plan |= {
            "mlp.shared_experts.gate_proj": ColwiseParallel(),
            "mlp.shared_experts.up_proj": ColwiseParallel(),
            "mlp.shared_experts.down_proj": RowwiseParallel(output_layouts=Partial()),
        }
    return plan


def is_mixture(layer: Any) -> bool:
    """Return whether a decoder layer's feed-forward is a mixture of experts."""
    return hasattr(layer.mlp, "experts")


class _OwnParts:
    """Experts as their own code sees them, with a rank's parts of the two tensors for the whole ones."""

    def __init__(self, experts: nn.Module) -> None:
        self._experts = experts
        for name in CUT_DIMS:
            tensor = getattr(experts, name)
            setattr(self, name, tensor.to_local() if isinstance(tensor, DTensor) else tensor)

    def __getattr__(self, name: str) -> Any:
        """Return what is not cut from the experts themselves."""
        return getattr(self._experts, name)


def compute_own_parts(model: Any) -> None:
    """Let transformers' grouped products multiply by a rank's own parts of the experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

    def own_parts(experts: nn.Module, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> Any:
        own: Any = _OwnParts(experts)
        return grouped_mm_experts_forward(own, hidden, chosen, weights)

    ALL_EXPERTS_FUNCTIONS.register(LOCAL_EXPERTS, own_parts)
    model.config._experts_implementation = LOCAL_EXPERTS
