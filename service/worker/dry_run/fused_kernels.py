"""What Megatron's fused kernels allocate and keep, in place of transformers' separate operations.

No values are computed: each function makes the tensors its kernel makes and saves
what that kernel saves.

Source: Megatron-Core, `fusions/fused_bias_swiglu.py` (keeps the two inputs),
Transformer Engine's RMSNorm (keeps input, weight and one fp32 statistic a token),
`tensor_parallel/cross_entropy.py` (works in place of the fp32 logits); Transformer Engine,
`module/base.py`, `get_dummy_wgrad` (one empty gradient of each name and shape, kept).
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.distributed.tensor import DTensor


class FusedRmsNorm(torch.autograd.Function):
    """RMSNorm of `hidden` [..., hidden] in one kernel."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the output, and keep input, weight and statistic."""
        statistic = torch.empty(hidden.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, statistic)
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of input and weight."""
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight)


class FusedSwiGlu(torch.autograd.Function):
    """SiLU(gate) times up, in one kernel."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Return the product, and keep both inputs."""
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both inputs."""
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


class InPlaceCrossEntropy(torch.autograd.Function):
    """Cross-entropy that turns fp32 logits [tokens, local vocabulary] into their gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, and keep the logits' storage."""
        ctx.save_for_backward(logits)
        return torch.zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> torch.Tensor:
        """Return the kept storage as the gradient."""
        (logits,) = ctx.saved_tensors
        kept: torch.Tensor = logits
        return kept


def fuse_layers(model: Any) -> None:
    """Give a Llama-like transformers model Megatron's fused norms and SwiGLU."""

    def norm(self: Any, hidden_states: torch.Tensor) -> Any:
        return FusedRmsNorm.apply(hidden_states, self.weight)  # type: ignore[no-untyped-call]

    def feed_forward(self: Any, x: torch.Tensor) -> Any:
        product = FusedSwiGlu.apply(self.gate_proj(x), self.up_proj(x))  # type: ignore[no-untyped-call]
        return self.down_proj(product)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        elif type(module).__name__.endswith("MLP"):
            module.forward = types.MethodType(feed_forward, module)


def vocabulary_parallel_loss(logits: torch.Tensor) -> Any:
    """Return Megatron's loss of logits [batch, sequence, vocabulary], this rank's part where they are split."""
    local = logits.to_local() if isinstance(logits, DTensor) else logits
    return InPlaceCrossEntropy.apply(local.flatten(0, 1).float())  # type: ignore[no-untyped-call]


def dummy_weight_gradients(model: Any) -> list[torch.Tensor]:
    """Return the empty gradients that autograd is handed where kernels add weight gradients up themselves.

    All layers share one for each of a layer's matrices.
    """
    distinct: dict[tuple[str, torch.Size], torch.Tensor] = {}
    for name, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.to_local() if isinstance(module.weight, DTensor) else module.weight
            distinct[name.rpartition(".")[2], weight.shape] = weight
    return [torch.empty_like(weight) for weight in distinct.values()]
