"""How the weights of a group become codes and back: int8, int4 with zero points, and mxfp4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from plimsoll.service.worker.quantization.kernels.native_kernels import NativeKernels
from plimsoll.service.worker.quantization.schemes.eight_bit_codes import int8_codes, int8_scales
from plimsoll.service.worker.quantization.schemes.four_bit_codes import E2M1

# 2^4 - 1 steps, and the least positive fp16 number, so that a group of zeros divides.
INT4_STEPS = 15
INT4_LEAST_SCALE = 2.0**-24

# OCP Microscaling 1.0, sections 5.3 and 6.3: the largest exponent of E2M1 and the bias and least exponent of E8M0.
E2M1_LARGEST_EXPONENT = 2
E8M0_BIAS = 127
E8M0_LEAST, E8M0_LARGEST = -127, 127
# IEEE 754-2019, table 3.5, binary32.
FP32_BIAS, FP32_FRACTION_BITS = 127, 23


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPiece:
    """Whole groups of a contiguous matrix, and where their codes and scales go, for a compiled kernel."""

    line: torch.Tensor
    group_size: int
    stored: torch.Tensor
    scales: Mapping[str, torch.Tensor]


class GroupCodes(Protocol):
    """How the groups of a piece of a matrix become codes and back.

    Groups are [rows, groups, group size] in fp32. `scale_parts` are the parts
    that stand once a group, [rows, groups] each, by name and dtype.
    """

    packs_pairs: bool
    scale_parts: Mapping[str, torch.dtype]

    def run_kernel(self, kernels: NativeKernels, piece: GroupPiece) -> float:
        """Fill the piece's parts by a compiled kernel; return the largest magnitude."""
        ...

    def scales(self, groups: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parts that scale the groups."""
        ...

    def encode(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what `pack` takes, one number for each weight."""
        ...

    def pack(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return the stored bytes of a line of encoded numbers, even in length where two share a byte."""
        ...

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        """Return a line of fp32 numbers, one (or two) for each stored byte."""
        ...

    def rescale(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return decoded groups as weights."""
        ...


class Int8Codes:
    """int8 with an fp32 scale: twice the largest magnitude over 254."""

    packs_pairs = False
    scale_parts: Mapping[str, torch.dtype] = {"scale": torch.float32}

    def run_kernel(self, kernels: NativeKernels, piece: GroupPiece) -> float:
        """Fill the parts by the compiled kernel."""
        return kernels.quantize_int8_groups(
            piece.line, group_size=piece.group_size, codes=piece.stored, scales=piece.scales["scale"]
        )

    def scales(self, groups: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the scales; 0 for a group of zeros."""
        return {"scale": int8_scales(groups.abs().amax(dim=-1))}

    def encode(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weights in steps of the scale, rounded."""
        return int8_codes(groups, scales["scale"].unsqueeze(-1))

    def pack(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return the steps as int8."""
        return encoded.to(torch.int8)

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the steps as fp32."""
        return stored.float()

    def rescale(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return steps times scale."""
        return groups * scales["scale"].unsqueeze(-1)


class Int4Codes:
    """Unsigned 4-bit codes with an fp16 scale and a 4-bit zero point, rounded to nearest.

    A group's range is stretched to hold zero, as zero must have a code.

    Source: Jacob et al. 2017, arXiv:1712.05877, section 2.1 and 3; bytes as
    AWQ's WQLinear_GEMM stores them.
    """

    packs_pairs = True
    scale_parts: Mapping[str, torch.dtype] = {"scale": torch.float16, "zero_point": torch.uint8}

    def run_kernel(self, kernels: NativeKernels, piece: GroupPiece) -> float:
        """Fill the parts by the compiled kernel."""
        return kernels.quantize_int4_groups(
            piece.line,
            group_size=piece.group_size,
            packed=piece.stored,
            scales=piece.scales["scale"],
            zero_points=piece.scales["zero_point"],
        )

    def scales(self, groups: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the scale as fp16 and the code of zero, from 0 to 15."""
        low, high = torch.aminmax(groups, dim=-1)
        low, high = low.clamp_(max=0.0), high.clamp_(min=0.0)
        scale = ((high - low) / INT4_STEPS).clamp_(min=INT4_LEAST_SCALE).to(torch.float16)
        zero_point = (-low / scale.float()).round_().clamp_(0, INT4_STEPS)
        return {"scale": scale, "zero_point": zero_point.to(torch.uint8)}

    def encode(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the codes."""
        steps = (groups / scales["scale"].float().unsqueeze(-1)).round_()
        return steps.add_(scales["zero_point"].float().unsqueeze(-1)).clamp_(0, INT4_STEPS).to(torch.uint8)

    def pack(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return two codes a byte, the first in the high half."""
        return pack_nibbles(encoded)

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the codes as fp32."""
        return unpack_nibbles(stored).float()

    def rescale(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return (code - zero point) x scale."""
        return (groups - scales["zero_point"].float().unsqueeze(-1)) * scales["scale"].float().unsqueeze(-1)


class Mxfp4Codes:
    """E2M1 elements under a power of two, stored as its biased exponent.

    The power is that of the largest magnitude less E2M1's largest exponent, so
    that what exceeds 6 after scaling is cut to 6.

    Source: OCP Microscaling Formats (MX) Specification 1.0, section 6.3.
    """

    packs_pairs = True
    scale_parts: Mapping[str, torch.dtype] = {"exponent": torch.uint8}

    def run_kernel(self, kernels: NativeKernels, piece: GroupPiece) -> float:
        """Fill the parts by the compiled kernel."""
        thresholds, codes = E2M1.tensors()
        return kernels.quantize_microscaled(
            piece.line,
            group_size=piece.group_size,
            thresholds=thresholds,
            codes=codes,
            packed=piece.stored,
            exponents=piece.scales["exponent"],
        )

    def scales(self, groups: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the biased exponents; a group of zeros has the least."""
        largest = groups.abs().amax(dim=-1)
        # frexp's fraction is in [0.5, 1): its exponent is floor(log2) + 1.
        exponent = torch.frexp(largest).exponent - 1 - E2M1_LARGEST_EXPONENT
        exponent = torch.where(largest > 0, exponent, E8M0_LEAST)
        return {"exponent": (exponent.clamp_(E8M0_LEAST, E8M0_LARGEST) + E8M0_BIAS).to(torch.uint8)}

    def encode(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weights over their power of two."""
        return groups * _powers_of_two(E8M0_BIAS - scales["exponent"].to(torch.int32)).unsqueeze(-1)

    def pack(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return two codes a byte, the first in the high half."""
        return E2M1.encode_pairs(encoded)

    def decode(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the elements as fp32."""
        return E2M1.decode_pairs(stored)

    def rescale(self, groups: torch.Tensor, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return element times power of two."""
        return groups * _powers_of_two(scales["exponent"].to(torch.int32) - E8M0_BIAS).unsqueeze(-1)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Return a line of codes below 16, two a byte, the first in the high half; an odd line ends in half a byte of 0."""
    if codes.numel() % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return torch.bitwise_left_shift(codes[0::2], 4).bitwise_or_(codes[1::2])


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the two codes of each byte, as one line."""
    return torch.stack([torch.bitwise_right_shift(packed, 4), torch.bitwise_and(packed, 15)], dim=1).view(-1)


def swap_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return bytes whose halves have changed places."""
    return torch.bitwise_left_shift(packed, 4).bitwise_or_(torch.bitwise_right_shift(packed, 4))


def _powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2 to each exponent from -127 to 127, exactly: the exponent field of fp32, or its half bit below that."""
    bits = torch.bitwise_left_shift(exponents + FP32_BIAS, FP32_FRACTION_BITS)
    return torch.where(exponents == -FP32_BIAS, 1 << (FP32_FRACTION_BITS - 1), bits).view(torch.float32)
