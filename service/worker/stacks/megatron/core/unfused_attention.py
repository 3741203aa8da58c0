"""Attention whose scores are tensors (`--attention-backend unfused`): Megatron-Core's own as Transformer Engine has it.

Transformer Engine's differs in two things: its scores are a new tensor each time, where Megatron-Core has a buffer for
good, and its softmax is one kernel for other shapes.

Source: Transformer Engine, pytorch/attention/dot_product_attention/backends.py (`UnfusedDotProductAttention`) and
softmax.py (`FusedScaleMaskSoftmax`), pytorch/csrc/extensions/softmax.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.dot_product_attention import DotProductAttention

from plimsoll.service.worker.recording.patches import replaced

# Sequences between these lengths, in multiples of this, of so many heads of all sequences together.
SHORTEST, LONGEST, LENGTH_MULTIPLE, HEADS_MULTIPLE = 16, 16384, 8, 4


class _NoBuffer:
    """Megatron-Core's memory for the scores, of which nothing is read: as if it were gone once they are written."""

    def get_tensor(self, shape: Sequence[int], dtype: torch.dtype, _name: str) -> torch.Tensor:
        """Return a tensor of that shape that takes one element."""
        return torch.empty(1, dtype=dtype).expand(shape)


class UnfusedAttention(DotProductAttention):  # type: ignore[misc]
    """Attention of [sequence, batch, heads, head_dim] whose scores are tensors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale_mask_softmax.is_kernel_available = self._is_one_kernel
        self.scale_mask_softmax.forward_fused_softmax = _one_kernel

    def forward(self, *operands: Any, **kinds: Any) -> Any:
        """Return the output [sequence, batch, heads x head_dim]."""
        with replaced(parallel_state, "get_global_memory_buffer", _NoBuffer):
            return super().forward(*operands, **kinds)

    def _is_one_kernel(self, _mask: None, batch: int, heads: int, _queries: int, keys: int) -> bool:
        return (
            self.config.params_dtype is not torch.float32
            and SHORTEST < keys < LONGEST
            and keys % LENGTH_MULTIPLE == 0
            and batch * heads % HEADS_MULTIPLE == 0
        )


def _one_kernel(scores: torch.Tensor, _mask: None) -> Any:
    return _Softmax.apply(scores)  # type: ignore[no-untyped-call]


class _Softmax(torch.autograd.Function):
    """The scaled and masked softmax in one kernel, whose gradient is written over the one it is given."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        """Return the probabilities, and keep them."""
        probabilities = torch.empty_like(scores)
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Return the scores' gradient."""
        return gradients[0]
