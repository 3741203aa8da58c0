"""The measured formats of operators (`planners/operators/formats.py`) that a format of served weights is timed as."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.serving.formats.weight_format import WeightFormat

PLAIN = "bfloat16"
FP8, FP8_BLOCKS, WEIGHTS_IN_8_BITS, WEIGHTS_IN_4_BITS = "fp8", "fp8_block", "int8_wo", "int4_wo"
MXFP4, MXFP4_AND_FP8, NVFP4, INT8 = "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "nvfp4", "sq"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandFormats:
    """What products with quantized matrices are timed as, those of experts apart.

    `plain_factor` is what products in the model's own dtype take of those in 16 bits: twice as much in 32.
    """

    dense: str
    experts: str
    plain_factor: float


def operand_formats(weights: WeightFormat, gpu: Gpu, *, has_scale_blocks: bool) -> OperandFormats:
    """Return what served weights are timed as on a card, which may lack units for their own format."""
    rates = gpu.peak_flops_per_second
    in_eight_bits = (FP8_BLOCKS if has_scale_blocks else FP8) if "fp8" in rates else WEIGHTS_IN_8_BITS
    microscaled = MXFP4_AND_FP8 if "nvfp4" in rates else MXFP4
    dense, experts = {
        "fp8": (in_eight_bits, in_eight_bits),
        "int8": (INT8, FP8) if "int8" in rates else (WEIGHTS_IN_8_BITS, WEIGHTS_IN_8_BITS),
        "nf4": (WEIGHTS_IN_4_BITS, WEIGHTS_IN_4_BITS),
        "int4": (WEIGHTS_IN_4_BITS, WEIGHTS_IN_4_BITS),
        "int4-experts": (PLAIN, WEIGHTS_IN_4_BITS),
        "mxfp4": (WEIGHTS_IN_4_BITS, microscaled),
        "mxfp4-fp8": (FP8_BLOCKS if "fp8" in rates else WEIGHTS_IN_8_BITS, microscaled),
        "nvfp4": (NVFP4, NVFP4) if "nvfp4" in rates else (WEIGHTS_IN_4_BITS, WEIGHTS_IN_4_BITS),
    }.get(weights.name, (PLAIN, PLAIN))
    return OperandFormats(dense=dense, experts=experts, plain_factor=weights.dense_bytes / 2)
