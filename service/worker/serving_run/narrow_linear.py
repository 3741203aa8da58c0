"""Linear layers whose matrices take one byte an element, as vLLM holds them.

Source: vllm/model_executor/layers/quantization: fp8.py (one fp32 scale a matrix),
compressed_tensors/schemes/compressed_tensors_w8a8_int8.py (one fp32 scale an output channel).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

NARROW_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


class NarrowLinear(nn.Module):
    """A linear layer that multiplies by its matrix, widened to the input's format for the while.

    The engine's kernels multiply in the narrow format: their product takes no wide copy.
    """

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__()
        outputs, inputs = linear.weight.shape
        empty = torch.empty(outputs, inputs, dtype=NARROW_DTYPES[name], device=linear.weight.device)
        scales = torch.empty((outputs, 1) if name == "int8" else (1, 1), dtype=torch.float32, device=empty.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self.weight_scale = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        wide = self.weight.to(hidden.dtype) * self.weight_scale.to(hidden.dtype)
        return nn.functional.linear(hidden, wide, self.bias)


class NarrowShape(NarrowLinear):
    """The same for fake tensors, whose product needs no matrix: what the engine's kernel allocates."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the narrow copy of the input multiplied, as the kernel does."""
        narrow = hidden.to(self.weight.dtype)
        output = hidden.new_empty(*narrow.shape[:-1], self.weight.shape[0])
        return output if self.bias is None else output + self.bias


def narrow_matrices(model: Any, name: str, *, by_shape: bool) -> None:
    """Put narrow layers in place of every linear one of the decoder's layers; embedding, norms and head stay wide."""
    kind = NarrowShape if by_shape else NarrowLinear
    for layer in model.model.layers:
        for path, linear in [(path, module) for path, module in layer.named_modules() if type(module) is nn.Linear]:
            parent_path, _, last = path.rpartition(".")
            setattr(layer.get_submodule(parent_path), last, kind(linear, name))
