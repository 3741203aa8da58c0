"""Linear layers whose matrices are held in a narrow or a packed format, as vLLM holds and multiplies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plimsoll.service.worker.serving.divided_layers import put
from plimsoll.service.worker.serving.weight_names import INT4, NF4
from plimsoll.service.worker.serving.weight_storage import NARROW_DTYPES, stored_matrix, widened

# Marlin's kernels: a 32-bit lock for each multiprocessor of the card (marlin_make_workspace_new), and sums in fp32 of
# tiles of at most 64 rows and 256 outputs on each (csrc/quantization/marlin, c_tmp). 132 multiprocessors of an H100.
MULTIPROCESSORS = 132
MARLIN_ROWS, MARLIN_OUTPUTS = 64, 256
# A gate of one number a token (vllm/model_executor/models/qwen2_moe.py, without a quant_config).
KEPT_WIDE = "shared_expert_gate"


class NarrowLinear(nn.Module):
    """A linear layer that multiplies by its matrix, widened to the input's format for the while.

    The engine's kernels multiply in the narrow format: their product takes no wide copy.
    """

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__()
        for part, tensor in stored_matrix(name, tuple(linear.weight.shape), like=linear.weight).items():
            self.register_parameter(part, nn.Parameter(tensor, requires_grad=False))
        self.bias = linear.bias
        self.outputs, self.inputs = linear.weight.shape
        self.format = name

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return nn.functional.linear(hidden, widened(dict(self.named_parameters()), hidden.dtype), self.bias)


class NarrowShape(NarrowLinear):
    """The same for fake tensors, whose product needs no matrix: what the engine's kernel allocates."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the narrow copy of the input multiplied, as the kernel does."""
        narrow = hidden.to(NARROW_DTYPES[self.format])
        return _with_bias(hidden.new_empty(*narrow.shape[:-1], self.outputs), self.bias)


class MarlinShape(NarrowLinear):
    """Words of 4-bit numbers that Marlin's kernel multiplies by as they are, by shape."""

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__(linear, name)
        locks = torch.empty(MULTIPROCESSORS, dtype=torch.int32, device=linear.weight.device)
        self.register_buffer("workspace", locks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product; tiles are summed in fp32."""
        rows = hidden.numel() // hidden.shape[-1]
        tiles = MULTIPROCESSORS * min(MARLIN_ROWS, rows) * MARLIN_OUTPUTS
        sums = hidden.new_empty(tiles, dtype=torch.float32)
        output = hidden.new_empty(*hidden.shape[:-1], self.outputs)
        del sums
        return _with_bias(output, self.bias)


class UnpackedShape(NarrowLinear):
    """Blocks in NF4, unpacked to be multiplied by, by shape.

    Source: vllm/model_executor/layers/quantization/bitsandbytes.py, _apply_bnb_4bit: the product of each matrix
    is written into the layer's output.
    """

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product with the unpacked matrix."""
        output = hidden.new_empty(*hidden.shape[:-1], self.outputs)
        matrix = hidden.new_empty(self.outputs, self.inputs)
        output.copy_(nn.functional.linear(hidden, matrix))
        return _with_bias(output, self.bias)


def _with_bias(output: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return output if bias is None else output.add_(bias)


SHAPES: dict[str, type[NarrowLinear]] = {
    **dict.fromkeys(NARROW_DTYPES, NarrowShape),
    INT4: MarlinShape,
    NF4: UnpackedShape,
}


def narrow_matrices(model: Any, name: str, *, by_shape: bool) -> None:
    """Put narrow layers in place of every linear one of the decoder's layers; embedding, norms and head stay wide."""
    kind = SHAPES[name] if by_shape else NarrowLinear
    for layer in model.model.layers:
        linears = [(path, module) for path, module in layer.named_modules() if type(module) is nn.Linear]
        for path, linear in linears:
            if not path.endswith(KEPT_WIDE):
                put(layer, path, kind(linear, name))
