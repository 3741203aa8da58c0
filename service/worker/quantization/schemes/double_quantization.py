"""The scales of NF4 and FP4, quantized once more to 8 bits.

Source: Dettmers et al. 2023, arXiv:2305.14314, section 3; the dynamic map is of
Dettmers 2015, arXiv:1511.04561; the rounding is that of bitsandbytes 0.50.2's
CPU kernel, which looks a code up in a table and is not always the nearest.
"""

from __future__ import annotations

import functools

import torch

from plimsoll.planners.formats.storage import NESTED_BLOCK_SIZE
from plimsoll.service.worker.quantization.kernels.native_kernels import NativeKernels

EXPONENT_BITS = 7
TABLE_BINS = 65_536


def quantize_scales(scales: torch.Tensor, kernels: NativeKernels | None = None) -> dict[str, torch.Tensor]:
    """Return the parts that stand for a line of fp32 scales.

    `absmax` are 8-bit codes of the scales less their mean, `nested_absmax` one
    fp32 scale for each 256 of them, `nested_offset` the mean. `kernels` must be
    some that read the scales.
    """
    offset = scales.mean()
    centred = scales - offset
    num_blocks = -(-centred.numel() // NESTED_BLOCK_SIZE)
    if kernels is not None:
        codes = torch.empty(centred.numel(), dtype=torch.uint8)
        nested = torch.empty(num_blocks, dtype=torch.float32)
        kernels.quantize_scales(
            centred,
            block_size=NESTED_BLOCK_SIZE,
            code_of_bin=_codes_by_bin(scales.device),
            codes=codes,
            nested=nested,
        )
        return {"absmax": codes, "nested_absmax": nested, "nested_offset": offset}
    padded = torch.nn.functional.pad(centred, (0, num_blocks * NESTED_BLOCK_SIZE - centred.numel()))
    blocks = padded.view(num_blocks, NESTED_BLOCK_SIZE)
    nested = blocks.abs().amax(dim=1)
    is_zero = nested == 0
    scaled = (blocks * (1.0 / nested.masked_fill(is_zero, 1.0)).unsqueeze(1)).clamp_(-1.0, 1.0)
    bins = ((scaled + 1.0) * 0.5 * (TABLE_BINS - 1) + 0.5).to(torch.int64).clamp_(0, TABLE_BINS - 1)
    codes = _codes_by_bin(scales.device)[bins]
    # The kernel writes code 0 and not the code of 0.0; the scale is 0 all the same.
    codes[is_zero] = 0
    return {
        "absmax": codes.flatten()[: scales.numel()].contiguous(),
        "nested_absmax": nested,
        "nested_offset": offset,
    }


def restore_scales(absmax: torch.Tensor, nested_absmax: torch.Tensor, nested_offset: torch.Tensor) -> torch.Tensor:
    """Return the fp32 scales that the parts stand for."""
    nested = nested_absmax.repeat_interleave(NESTED_BLOCK_SIZE)[: absmax.numel()]
    return dynamic_map(absmax.device)[absmax.to(torch.int64)] * nested + nested_offset


@functools.cache
def dynamic_map(device: torch.device) -> torch.Tensor:
    """Return the 256 values of the signed dynamic 8-bit type, ascending.

    The number of fraction bits grows with the magnitude: for each power of ten
    from 1e-6 to 1 the middles of 1, 2, 4 … 64 equal steps from 0.1 to 1, both
    signs, and 0 and 1.
    """
    values = [0.0, 1.0]
    for exponent in range(EXPONENT_BITS):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        middles = (edges[:-1] + edges[1:]) / 2.0
        power = 10 ** (exponent - EXPONENT_BITS + 1)
        values += (power * middles).tolist() + (-power * middles).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32, device=device)


@functools.cache
def _codes_by_bin(device: torch.device) -> torch.Tensor:
    """Return the code of the middle of each of 65,536 bins from -1 to 1."""
    values = dynamic_map(torch.device("cpu"))
    middles = 0.5 * (values[:-1] + values[1:])
    bins = -1.0 + (2.0 * torch.arange(TABLE_BINS, dtype=torch.float32)) / (TABLE_BINS - 1)
    return torch.bucketize(bins, middles).to(torch.uint8).to(device)
