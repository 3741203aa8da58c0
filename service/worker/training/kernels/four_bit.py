"""Linear layers whose frozen matrix is stored in NF4, by shape.

No values are computed: the layer holds the tensors that bitsandbytes' layer
holds, and multiplies by an unpacked matrix that comes and goes as its does.

Source: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes 0.50,
`functional.quantize_4bit` (the tensors) and `autograd/_functions.py`, `MatMul4Bit`
(nothing but the packed weight is kept, and it is unpacked again in the backward pass).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

ELEMENTS_OF_A_BYTE = 2
BLOCK_ELEMENTS = 64  # Linear4bit's block size on CUDA
NESTED_BLOCK_SCALES = 256  # scales under one scale of their own
CODEBOOK_ENTRIES = 16


class FourBitLinear(nn.Module):
    """A linear layer with a packed weight; its scales are no parameters, so that nobody shards them."""

    def __init__(self, linear: nn.Linear, *, double_quantization: bool) -> None:
        super().__init__()
        elements = linear.weight.numel()
        blocks = math.ceil(elements / BLOCK_ELEMENTS)
        self.shape, self.dtype = tuple(linear.weight.shape), linear.weight.dtype
        packed = torch.empty(math.ceil(elements / ELEMENTS_OF_A_BYTE), 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias
        self.register_buffer("quant_map", torch.empty(CODEBOOK_ENTRIES, dtype=torch.float32))
        if not double_quantization:
            self.register_buffer("absmax", torch.empty(blocks, dtype=torch.float32))
            return
        self.register_buffer("absmax", torch.empty(blocks, dtype=torch.uint8))
        nested = math.ceil(blocks / NESTED_BLOCK_SCALES)
        self.register_buffer("nested_absmax", torch.empty(nested, dtype=torch.float32))
        self.register_buffer("nested_offset", torch.empty((), dtype=torch.float32))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product with the unpacked matrix."""
        output: torch.Tensor = FourBitProduct.apply(hidden, self.weight, self)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a matrix as the kernel that unpacks the weight makes it."""
        scales = self.get_buffer("absmax")
        if scales.dtype is torch.uint8:
            scales = scales.float()  # the scales are unpacked first, and live as long as this function
        matrix = torch.empty(self.shape, dtype=self.dtype, device=scales.device)
        return matrix.to(dtype)


class FourBitProduct(torch.autograd.Function):
    """`hidden` [..., inputs] times a packed matrix [outputs, inputs], which does not learn."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, packed: torch.Tensor, layer: FourBitLinear) -> torch.Tensor:
        """Return the product, and keep the packed weight alone."""
        device_type = hidden.device.type
        if torch.is_autocast_enabled(device_type):
            hidden = hidden.to(torch.get_autocast_dtype(device_type))
        ctx.layer = layer
        ctx.save_for_backward(packed)
        return nn.functional.linear(hidden, layer.unpacked(hidden.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the input's gradient."""
        return gradients[0] @ ctx.layer.unpacked(gradients[0].dtype), None, None
