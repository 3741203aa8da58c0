"""mxfp4 and fp8 against torchao's own quantization of the same matrix, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

MICROSCALING_BLOCK = 32


def by_torchao(scheme: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return torchao's parts under our names.

    Its first of two 4-bit codes is the low half of the byte, ours is the high half. In bf16 it would
    round the scale of fp8 to bf16 first, and so is given fp32.
    """
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

    if scheme == "mxfp4":
        exponents, pairs = to_mx(weight, torch.float4_e2m1fn_x2, MICROSCALING_BLOCK)
        halves = pairs.view(torch.uint8)
        return {"exponent": exponents, "codes": halves >> 4 | halves << 4}
    rows, columns = weight.shape
    block = [rows, columns] if scheme == "fp8" else [1, columns]
    scale = _choose_scale_float8(weight.float(), block)
    return {"scale": scale, "codes": _quantize_affine_float8(weight.float(), scale)}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["mxfp4", "fp8", "fp8-channel"])
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 24),
    blocks=st.integers(1, 6),
    spread=st.sampled_from([0, 3, 12]),
)
@settings(max_examples=40, deadline=None)
def test_parts_equal_those_of_torchao(scheme: str, dtype: torch.dtype, seed: int, rows: int, blocks: int, spread: int):
    drawn = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, blocks * MICROSCALING_BLOCK, generator=drawn)
    # Magnitudes up to 2^12 apart, so that scales and rounding differ from row to row and from block to block.
    weight = (weight * 2.0 ** torch.randint(-spread, spread + 1, weight.shape, generator=drawn)).to(dtype)
    with ChunkWorkers(threads=1) as workers:
        parts = quantizer(scheme_settings(scheme)).quantize(weight, workers).parts
    expected = by_torchao(scheme, weight)
    assert {name: as_bytes(part) for name, part in parts.items()} == {
        name: as_bytes(part) for name, part in expected.items()
    }
