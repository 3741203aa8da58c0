"""The number formats: bits, range, digits, and the scales that go with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from plimsoll.planners.ground.errors import UnknownName

IEEE_754 = "IEEE 754-2019"
BFLOAT16 = "Intel 2018, BFLOAT16 Hardware Numerics Definition"
AMPERE = "NVIDIA 2020, A100 Tensor Core GPU Architecture"
FP8 = "Micikevicius et al. 2022, arXiv:2209.05433"
MICROSCALING = "OCP Microscaling Formats (MX) Specification 1.0, 2023"
NVFP4 = "NVIDIA 2025, arXiv:2509.25149"
LLM_INT8 = "Dettmers et al. 2022, arXiv:2208.07339"
QLORA = "Dettmers et al. 2023, arXiv:2305.14314"
AWQ = "Lin et al. 2023, arXiv:2306.00978"
BITSANDBYTES = "bitsandbytes 0.50.2, functional.get_4bit_type"

NO_SCALING = "No loss scaling is needed."
SAME_RANGE_AS_FP32 = "No loss scaling is needed: the exponent has as many bits as that of fp32."
# 65,536, 2,000 steps: torch.amp.GradScaler's defaults.
SCALE_THE_LOSS = (
    "Scale the loss: gradients below 2^-24 vanish. Start at 65,536, halve on overflow and skip that step, double after "
    "2,000 steps without one; unscale before clipping."
)
SCALE_EACH_TENSOR = (
    "Instead of the loss, scale each tensor (or block) by its own largest magnitude; keep master weights and sums in a "
    "wider format."
)
STORE_ONLY = "Weights are stored in it and multiplied in a wider format: no gradient is ever held in it."


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFormat:
    """One level of scales: its format, and how many elements share one (None: the whole tensor)."""

    format: str
    bits: int
    elements_per_scale: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """One way to write a number.

    `bits` carry information; `stored_bits` is what an element occupies in
    memory, scales apart. `smallest_normal`, `smallest_subnormal` are the least
    positive values with and without full precision; integers have steps of one
    and code books no precision of their own, so theirs are null. Values are
    those of the elements, before any scale multiplies them.
    """

    name: str
    bits: int
    stored_bits: int
    exponent_bits: int
    fraction_bits: int
    largest: float
    smallest_normal: float | None
    smallest_subnormal: float | None
    decimal_digits: float | None
    needs_loss_scaling: bool
    advice: str
    scales: tuple[ScaleFormat, ...]
    source: str


def number_format(name: str) -> NumberFormat:
    """Return the format of that name; raises `UnknownName` and lists the near ones."""
    if name not in FORMATS:
        raise UnknownName(name, FORMATS)
    return FORMATS[name]


def _floating(
    name: str,
    exponent_bits: int,
    fraction_bits: int,
    *,
    source: str,
    advice: str,
    largest: float | None = None,
    needs_loss_scaling: bool = False,
    stored_bits: int | None = None,
    scales: tuple[ScaleFormat, ...] = (),
) -> NumberFormat:
    """Return a format of sign, exponent and fraction.

    The exponent's bias is IEEE 754's, and unless `largest` is given its highest value is
    kept for infinity. Digits are the significand's bits times log10(2).
    """
    bits = 1 + exponent_bits + fraction_bits
    bias = 2 ** (exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    return NumberFormat(
        name=name,
        bits=bits,
        stored_bits=stored_bits or bits,
        exponent_bits=exponent_bits,
        fraction_bits=fraction_bits,
        largest=(2.0 - 2.0**-fraction_bits) * 2.0**bias if largest is None else largest,
        smallest_normal=smallest_normal,
        smallest_subnormal=smallest_normal * 2.0**-fraction_bits,
        decimal_digits=(fraction_bits + 1) * math.log10(2),
        needs_loss_scaling=needs_loss_scaling,
        advice=advice,
        scales=scales,
        source=source,
    )


def _codes(
    name: str, bits: int, *, largest: float, digits: float | None, scales: tuple[ScaleFormat, ...], source: str
) -> NumberFormat:
    """Return an integer or code-book format: no exponent, no range of its own."""
    return NumberFormat(
        name=name,
        bits=bits,
        stored_bits=bits,
        exponent_bits=0,
        fraction_bits=0,
        largest=largest,
        smallest_normal=None,
        smallest_subnormal=None,
        decimal_digits=digits,
        needs_loss_scaling=False,
        advice=STORE_ONLY,
        scales=scales,
        source=source,
    )


PER_TENSOR = ScaleFormat(format="fp32", bits=32, elements_per_scale=None)
PER_64 = ScaleFormat(format="fp32", bits=32, elements_per_scale=64)
# AWQ keeps, for each group, a 16-bit scale and a 4-bit zero point.
PER_128 = ScaleFormat(format="fp16", bits=16, elements_per_scale=128)
ZERO_PER_128 = ScaleFormat(format="uint4 zero point", bits=4, elements_per_scale=128)
E8M0_PER_32 = ScaleFormat(format="e8m0", bits=8, elements_per_scale=32)
E4M3_PER_16 = ScaleFormat(format="fp8-e4m3", bits=8, elements_per_scale=16)

# E4M3 has no infinity: S.1111.110 = 1.75 x 2^8 is its largest, S.1111.111 is NaN.
LARGEST_E4M3 = 448.0
# E2M1 has neither infinity nor NaN: S.11.1 = 1.5 x 2^2.
LARGEST_E2M1 = 6.0
# bitsandbytes divides its E2M1 values (bias 2, so at most 12) by the largest.
LARGEST_BITSANDBYTES_FP4 = 12.0

_ALL = (
    _floating("fp32", 8, 23, source=IEEE_754, advice=NO_SCALING),
    _floating("tf32", 8, 10, stored_bits=32, source=AMPERE, advice=SAME_RANGE_AS_FP32),
    _floating("bf16", 8, 7, source=BFLOAT16, advice=SAME_RANGE_AS_FP32),
    _floating("fp16", 5, 10, source=IEEE_754, advice=SCALE_THE_LOSS, needs_loss_scaling=True),
    _floating("fp8-e4m3", 4, 3, largest=LARGEST_E4M3, scales=(PER_TENSOR,), source=FP8, advice=SCALE_EACH_TENSOR),
    _floating("fp8-e5m2", 5, 2, scales=(PER_TENSOR,), source=FP8, advice=SCALE_EACH_TENSOR),
    _codes("int8", 8, largest=127.0, digits=math.log10(2**7), scales=(PER_TENSOR,), source=LLM_INT8),
    _codes("int4", 4, largest=15.0, digits=math.log10(2**4), scales=(PER_128, ZERO_PER_128), source=AWQ),
    _codes("nf4", 4, largest=1.0, digits=None, scales=(PER_64,), source=QLORA),
    NumberFormat(
        name="fp4",
        bits=4,
        stored_bits=4,
        exponent_bits=2,
        fraction_bits=1,
        largest=1.0,
        smallest_normal=2.0 / LARGEST_BITSANDBYTES_FP4,
        smallest_subnormal=0.0625 / LARGEST_BITSANDBYTES_FP4,
        decimal_digits=2 * math.log10(2),
        needs_loss_scaling=False,
        advice=STORE_ONLY,
        scales=(PER_64,),
        source=BITSANDBYTES,
    ),
    _floating(
        "mxfp4", 2, 1, largest=LARGEST_E2M1, scales=(E8M0_PER_32,), source=MICROSCALING, advice=SCALE_EACH_TENSOR
    ),
    _floating(
        "nvfp4", 2, 1, largest=LARGEST_E2M1, scales=(E4M3_PER_16, PER_TENSOR), source=NVFP4, advice=SCALE_EACH_TENSOR
    ),
)

FORMATS: Mapping[str, NumberFormat] = MappingProxyType({entry.name: entry for entry in _ALL})
