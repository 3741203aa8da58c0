"""What Megatron's fused kernels allocate and keep, in place of transformers' separate operations.

Each function makes the tensors its kernel makes and saves what that kernel saves. Of
real tensors the values are computed too, in place as far as torch can: the weight's
gradient of a norm takes a copy of the input that the kernel does not.

Source: Megatron-Core, `fusions/fused_bias_swiglu.py` (keeps the two inputs),
Transformer Engine's RMSNorm (keeps input, weight and one fp32 statistic a token),
`tensor_parallel/cross_entropy.py` (works in place of the fp32 logits); Transformer Engine,
`module/base.py`, `get_dummy_wgrad` (one empty gradient of each name and shape, kept).
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from plimsoll.service.worker.training.kernels.rms_norm import has_values, normed, normed_gradients
from plimsoll.service.worker.training.parallel.experts import one_expert_each


class FusedRmsNorm(torch.autograd.Function):
    """RMSNorm of `hidden` [..., hidden] in one kernel."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the output, and keep input, weight and statistic."""
        if has_values(hidden):
            output, statistic = normed(hidden, weight)
        else:
            output, statistic = torch.empty_like(hidden), torch.empty(hidden.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, statistic)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of input and weight."""
        hidden, weight, statistic = ctx.saved_tensors
        if has_values(hidden):
            return normed_gradients(gradients[0], hidden, weight, statistic)
        return torch.empty_like(hidden), torch.empty_like(weight)


class FusedSwiGlu(torch.autograd.Function):
    """SiLU(gate) times up, in one kernel."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product, and keep both inputs."""
        ctx.save_for_backward(gate, up)
        if has_values(gate):
            return nn.functional.silu(gate).mul_(up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both inputs."""
        gate, up = ctx.saved_tensors
        if has_values(gate):
            of_gate = gradients[0] * up
            torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
            return of_gate, nn.functional.silu(gate).mul_(gradients[0])
        return torch.empty_like(gate), torch.empty_like(up)


def fuse_layers(model: Any) -> None:
    """Give a Llama-like transformers model Megatron's fused norms and SwiGLU."""

    def norm(self: Any, hidden_states: torch.Tensor) -> Any:
        if not isinstance(hidden_states, DTensor):
            return FusedRmsNorm.apply(hidden_states, self.weight)  # type: ignore[no-untyped-call]
        # Each rank normalises its own tokens, and has a part of the weight's gradient.
        weight = self.weight.to_local(grad_placements=[Partial()])
        output = FusedRmsNorm.apply(hidden_states.to_local(), weight)  # type: ignore[no-untyped-call]
        return DTensor.from_local(output, hidden_states.device_mesh, hidden_states.placements, run_check=False)

    def feed_forward(self: Any, x: torch.Tensor) -> Any:
        product = FusedSwiGlu.apply(self.gate_proj(x), self.up_proj(x))  # type: ignore[no-untyped-call]
        return self.down_proj(product)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        elif type(module).__name__.endswith("MLP"):
            module.forward = types.MethodType(feed_forward, module)


def dummy_weight_gradients(chunks: Iterable[Any]) -> list[torch.Tensor]:
    """Return the empty gradients that autograd is handed where kernels add weight gradients up themselves.

    All layers share one for each of a layer's matrices, of whichever chunk of the model they are.
    """
    distinct: dict[tuple[str, torch.Size], torch.Tensor] = {}
    chunks = tuple(chunks)
    for name, module in (entry for chunk in chunks for entry in chunk.model.layers.named_modules()):
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.to_local() if isinstance(module.weight, DTensor) else module.weight
            distinct[name.rpartition(".")[2], weight.shape] = weight
    for name, expert in (entry for chunk in chunks for entry in one_expert_each(chunk)):
        distinct[name, expert.shape] = expert
    return [torch.empty_like(weight) for weight in distinct.values()]
