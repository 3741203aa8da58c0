"""Training precisions: what the matrix units multiply in and what activations are kept in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.formats import FORMATS
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownName
from plimsoll.planners.ground.hardware import Gpu, compute_capability

DTYPE_BYTES: Mapping[str, int] = {name: FORMATS[name].stored_bits // 8 for name in ("fp32", "bf16", "fp16")}
LOW_FORMATS = frozenset({"fp8", "nvfp4"})
FP32_BYTES = DTYPE_BYTES["fp32"]
FP8_BYTES = FORMATS["fp8-e4m3"].stored_bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One training precision: `compute_format` is a key of a GPU's peak rates.

    `capabilities` are the compute capabilities of NVIDIA's cards that have kernels for it, from the first to below the
    second.
    """

    name: str
    compute_format: str
    compute_bytes: int
    capabilities: tuple[float, float] = (0.0, math.inf)

    @property
    def is_low(self) -> bool:
        """Return whether matrices are multiplied in 8 or 4 bits."""
        return self.compute_format in LOW_FORMATS

    @property
    def computed(self) -> str:
        """Return what the matrix units multiply in, as people call it."""
        return self.compute_format if self.capabilities == (0.0, math.inf) else self.name.removesuffix("-mixed")

    def is_computed_by(self, gpu: Gpu) -> bool:
        """Return whether a card multiplies so."""
        capability, (least, beyond) = compute_capability(gpu), self.capabilities
        has_kernels = capability is None or least <= capability < beyond
        return has_kernels and self.compute_format in gpu.peak_flops_per_second

    @property
    def is_mixed(self) -> bool:
        """Return whether weights may be held wider than they are multiplied in."""
        return self.name.endswith("-mixed")


FP8_MIXED, MXFP8_MIXED, FP8_BLOCK_MIXED, NVFP4_MIXED = "fp8-mixed", "mxfp8-mixed", "fp8-block-mixed", "nvfp4-mixed"

PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(name="fp32", compute_format="fp32", compute_bytes=4),
        Precision(name="tf32", compute_format="tf32", compute_bytes=4),
        Precision(name="fp16-mixed", compute_format="fp16", compute_bytes=2),
        Precision(name="bf16-mixed", compute_format="bf16", compute_bytes=2),
        Precision(name="bf16", compute_format="bf16", compute_bytes=2),
        # Only the matrix products are in fp8 or fp4; what lies between them stays in 16 bits.
        Precision(name=FP8_MIXED, compute_format="fp8", compute_bytes=2),
        # Scales of 32 elements in hardware, or of 128 and of 128 x 128 in software; cards by TransformerEngine's
        # pytorch/quantization.py (check_mxfp8_support, check_fp8_block_scaling_support, check_nvfp4_support).
        Precision(name=MXFP8_MIXED, compute_format="fp8", compute_bytes=2, capabilities=(10.0, 12.0)),
        Precision(name=FP8_BLOCK_MIXED, compute_format="fp8", compute_bytes=2, capabilities=(9.0, 12.0)),
        Precision(name=NVFP4_MIXED, compute_format="nvfp4", compute_bytes=2, capabilities=(10.0, math.inf)),
    )
}


def training_precision(name: str) -> Precision:
    """Return a precision by name; raise for one that is unknown."""
    if name not in PRECISIONS:
        raise UnknownName(name, PRECISIONS, pointer="/training/precision")
    return PRECISIONS[name]


def dtype_bytes(name: str, *, pointer: str) -> int:
    """Return the bytes of one element of a state's dtype."""
    if name not in DTYPE_BYTES:
        detail = f"States in {name[:40]!r} are not planned: fp32, bf16 and fp16 are."
        raise InvalidQuestion(detail, pointer=pointer)
    return DTYPE_BYTES[name]
