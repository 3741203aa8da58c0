"""The formats weights are served in: how matrices are stored, and what the matrix units multiply in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planners.errors import InvalidQuestion
from planners.formats import storage_scheme, tensor_bytes
from planners.hardware import Gpu

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the layers' matrices are stored; everything else has `dense_bytes` an element.

    `compute_formats` are keys of a GPU's peak rates, the preferred one first: a
    card without 8-bit matrix units multiplies 8-bit weights in 16 bits, and
    4-bit weights are unpacked to 16 bits where there are no 4-bit units.
    """

    name: str
    scheme: str
    dense_bytes: int
    compute_formats: tuple[str, ...]

    @property
    def element_bits(self) -> int:
        """Return the bits of one element of a matrix, scales apart."""
        return storage_scheme(self.scheme).element_bits

    @property
    def is_quantized(self) -> bool:
        """Return whether matrices are smaller than the other weights."""
        return self.element_bits < BITS_PER_BYTE * self.dense_bytes

    def matrix_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a matrix with its scales."""
        return tensor_bytes(self.scheme, shape)

    def peak_flops_per_second(self, gpu: Gpu) -> float:
        """Return the dense rate at which `gpu` multiplies such weights."""
        for name in self.compute_formats:
            if name in gpu.peak_flops_per_second:
                return gpu.peak_flops_per_second[name]
        raise InvalidQuestion(
            f"{gpu.id} states no rate for {' or '.join(self.compute_formats)}, which weights in {self.name} need.",
            pointer="/serving/weights",
        )


HALF = ("bf16", "fp16")

WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    weight_format.name: weight_format
    for weight_format in (
        WeightFormat(name="fp32", scheme="fp32", dense_bytes=4, compute_formats=("tf32", "fp32")),
        WeightFormat(name="bf16", scheme="bf16", dense_bytes=2, compute_formats=HALF),
        WeightFormat(name="fp16", scheme="fp16", dense_bytes=2, compute_formats=("fp16", "bf16")),
        WeightFormat(name="fp8", scheme="fp8", dense_bytes=2, compute_formats=("fp8", *HALF)),
        # Checkpoints quantized to w8a8 hold one scale an output channel.
        WeightFormat(name="int8", scheme="int8-channel", dense_bytes=2, compute_formats=("int8", *HALF)),
        WeightFormat(name="nf4", scheme="nf4", dense_bytes=2, compute_formats=HALF),
        WeightFormat(name="int4", scheme="int4", dense_bytes=2, compute_formats=HALF),
        # Weights alone are 4 bits wide; activations stay at 16.
        WeightFormat(name="mxfp4", scheme="mxfp4", dense_bytes=2, compute_formats=HALF),
        # Weights and activations in 4 bits where the card can (Blackwell).
        WeightFormat(name="nvfp4", scheme="nvfp4", dense_bytes=2, compute_formats=("nvfp4", *HALF)),
    )
}


def weight_format(name: str) -> WeightFormat:
    """Return a serving format by name; raise with the known ones otherwise."""
    if name not in WEIGHT_FORMATS:
        raise InvalidQuestion(
            f"{name[:40]!r} is no serving format for weights; known are {', '.join(WEIGHT_FORMATS)}.",
            pointer="/serving/weights",
        )
    return WEIGHT_FORMATS[name]
