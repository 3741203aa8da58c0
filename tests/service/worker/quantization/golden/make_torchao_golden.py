"""Write `torchao.json`: what torchao makes of a matrix in the formats that this service shares with it.

    PYTHONPATH=. python tests/service/worker/quantization/golden/make_torchao_golden.py

Needs torchao, whose first of two 4-bit codes is the low half of its byte; ours is
the high half, and the halves are swapped before the bytes are summed.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import torch
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

from tests.service.worker.quantization.small_llama import numbers

GOLDEN = Path(__file__).with_name("torchao.json")
SHAPE = (96, 256)


def main() -> None:
    """Quantize in every dtype and sum up."""
    golden: dict[str, object] = {"made_with": {name: version(name) for name in ("torch", "torchao")}}
    for dtype in (torch.float32, torch.bfloat16):
        weight = numbers("golden", SHAPE).to(dtype)
        exponents, pairs = to_mx(weight, torch.float4_e2m1fn_x2, 32)
        pairs = pairs.view(torch.uint8)
        # In bf16 torchao would round the scale to bf16 first.
        scale = _choose_scale_float8(weight.float(), list(SHAPE))
        codes = _quantize_affine_float8(weight.float(), scale)
        row_scale = _choose_scale_float8(weight.float(), [1, SHAPE[1]])
        row_codes = _quantize_affine_float8(weight.float(), row_scale)
        golden[str(dtype)] = {
            "mxfp4": {"exponent": summed(exponents), "codes": summed(pairs >> 4 | pairs << 4)},
            "fp8": {"scale": summed(scale), "codes": summed(codes)},
            "fp8-channel": {"scale": summed(row_scale), "codes": summed(row_codes)},
        }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


def summed(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main()
