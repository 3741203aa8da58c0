"""The number formats of measured operators: what a weight takes, and in which arithmetic it is multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.ground.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandFormat:
    """A weight's bytes, scales counted, and the names of the rates that its products run at, the best one first."""

    weight_bytes: float
    arithmetic: tuple[str, ...]


# By the names of the measurements. fp8 by blocks has an fp32 scale for each 128 x 128, nvfp4 an 8-bit one for 16
# weights, mxfp4 for 32, int4 a 16-bit one for 128; weights alone in 8 or 4 bits (`_wo`, w4a16) are multiplied in bf16.
FORMATS: Mapping[str, OperandFormat] = {
    "bfloat16": OperandFormat(weight_bytes=2.0, arithmetic=("bf16",)),
    "fp8": OperandFormat(weight_bytes=1.0, arithmetic=("fp8",)),
    "fp8_static": OperandFormat(weight_bytes=1.0, arithmetic=("fp8",)),
    "fp8_block": OperandFormat(weight_bytes=1 + 4 / 128**2, arithmetic=("fp8",)),
    "nvfp4": OperandFormat(weight_bytes=0.5 + 1 / 16, arithmetic=("nvfp4", "fp8")),
    "int8_wo": OperandFormat(weight_bytes=1.0, arithmetic=("bf16",)),
    "int4_wo": OperandFormat(weight_bytes=0.5 + 2 / 128, arithmetic=("bf16",)),
    "sq": OperandFormat(weight_bytes=1.0, arithmetic=("int8",)),
    "w4a16_mxfp4": OperandFormat(weight_bytes=0.5 + 1 / 32, arithmetic=("bf16",)),
    "w4a8_mxfp4_mxfp8": OperandFormat(weight_bytes=0.5 + 1 / 32, arithmetic=("fp8",)),
}
# What bf16 multiplications run at on cards that know none.
LAST_RESORT = ("bf16", "fp16", "fp32")


def operations_per_second(gpu: Gpu, arithmetic: tuple[str, ...]) -> float:
    """Return the card's dense peak rate for the first of the arithmetics that it has, or of 16 or 32 bits."""
    rates = gpu.peak_flops_per_second
    return next(rates[name] for name in (*arithmetic, *LAST_RESORT) if name in rates)
