"""Cross-entropy of logits that become their own gradient.

Source: Megatron-Core, `tensor_parallel/cross_entropy.py` (works in place of the fp32 logits).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from plimsoll.service.worker.training.kernels.fused_loss import turn_into_gradient
from plimsoll.service.worker.training.kernels.rms_norm import has_values


class InPlaceCrossEntropy(torch.autograd.Function):
    """Cross-entropy that turns fp32 logits [tokens, local vocabulary] into their gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, and keep the logits' storage."""
        ctx.save_for_backward(logits)
        if has_values(logits):
            losses = logits.new_empty(logits.shape[0])
            # A label beyond this rank's part of the vocabulary stands for one within it.
            turn_into_gradient(logits, labels % logits.shape[1], losses)
            logits.div_(logits.shape[0])
            return losses.mean()
        return torch.zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the kept storage as the gradient."""
        (logits,) = ctx.saved_tensors
        return logits, None


def vocabulary_parallel_loss(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    """Return Megatron's loss of logits [batch, sequence, vocabulary], this rank's part where they are split."""
    local = logits.to_local() if isinstance(logits, DTensor) else logits
    return InPlaceCrossEntropy.apply(local.flatten(0, 1).float(), labels.flatten())  # type: ignore[no-untyped-call]
