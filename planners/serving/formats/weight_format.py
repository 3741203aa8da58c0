"""The formats weights are served in: how matrices are stored, and what the matrix units multiply in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.formats import storage_scheme
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.quantization.stacks import QuantizedStack, quantized_stack

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the layers' matrices are stored; everything else has `dense_bytes` an element.

    `compute_formats` are keys of a GPU's peak rates, the preferred one first: a
    card without 8-bit matrix units multiplies 8-bit weights in 16 bits, and
    4-bit weights are unpacked to 16 bits where there are no 4-bit units. `stack`
    names whose rules say what is quantized and how it is stored (None: nothing is),
    and `stack_of_experts` the same for models with experts where that differs.
    """

    name: str
    scheme: str
    dense_bytes: int
    compute_formats: tuple[str, ...]
    stack: str | None = None
    stack_of_experts: str | None = None

    @property
    def element_bits(self) -> int:
        """Return the bits of one element of a matrix, scales apart."""
        return storage_scheme(self.scheme).element_bits

    @property
    def is_quantized(self) -> bool:
        """Return whether matrices are smaller than the other weights."""
        return self.element_bits < BITS_PER_BYTE * self.dense_bytes

    def stack_of(self, model: ModelSpec) -> QuantizedStack | None:
        """Return the stack whose rules hold for a model, None where nothing is quantized."""
        has_experts = any(weight.experts > 1 for block in model.layers for weight in block.weights)
        name = self.stack_of_experts if has_experts and self.stack_of_experts else self.stack
        return None if name is None else quantized_stack(name)

    def peak_flops_per_second(self, gpu: Gpu) -> float:
        """Return the dense rate at which `gpu` multiplies such weights."""
        return gpu.peak_flops_per_second[self._compute_format(gpu)]

    def quantizes_activations(self, gpu: Gpu) -> bool:
        """Return whether `gpu` multiplies in a narrow format, for which every layer's inputs are quantized first."""
        return self._compute_format(gpu) in NARROW

    def _compute_format(self, gpu: Gpu) -> str:
        for name in self.compute_formats:
            if name in gpu.peak_flops_per_second:
                return name
        raise InvalidQuestion(
            f"{gpu.id} states no rate for {' or '.join(self.compute_formats)}, which weights in {self.name} need.",
            pointer="/serving/weights",
        )


HALF = ("bf16", "fp16")
# Kernels that quantize activations run before each matrix that multiplies in these.
NARROW = frozenset({"fp8", "int8", "nvfp4"})

WEIGHT_FORMATS: Mapping[str, WeightFormat] = {
    weight_format.name: weight_format
    for weight_format in (
        WeightFormat(name="fp32", scheme="fp32", dense_bytes=4, compute_formats=("tf32", "fp32")),
        WeightFormat(name="bf16", scheme="bf16", dense_bytes=2, compute_formats=HALF),
        WeightFormat(name="fp16", scheme="fp16", dense_bytes=2, compute_formats=("fp16", "bf16")),
        WeightFormat(name="fp8", scheme="fp8", dense_bytes=2, compute_formats=("fp8", *HALF), stack="fp8-on-loading"),
        # Checkpoints quantized to w8a8 hold one scale an output channel.
        WeightFormat(
            name="int8", scheme="int8-channel", dense_bytes=2, compute_formats=("int8", *HALF), stack="w8a8-wide-scales"
        ),
        WeightFormat(name="nf4", scheme="nf4", dense_bytes=2, compute_formats=HALF, stack="bitsandbytes-nf4-fused"),
        WeightFormat(name="int4", scheme="int4", dense_bytes=2, compute_formats=HALF, stack="awq"),
        # Kimi-K2.5's checkpoint: everything but the routed experts stays at 16 bits.
        WeightFormat(
            name="int4-experts",
            scheme="int4",
            dense_bytes=2,
            compute_formats=HALF,
            stack="compressed-tensors-int4-experts",
        ),
        # Weights alone are 4 bits wide; activations stay at 16.
        WeightFormat(
            name="mxfp4",
            scheme="mxfp4",
            dense_bytes=2,
            compute_formats=HALF,
            stack="compressed-tensors-mxfp4",
            stack_of_experts="gpt-oss-mxfp4",
        ),
        # DeepSeek-V4's checkpoints: experts in 4 bits, the other matrices in 8.
        WeightFormat(name="mxfp4-fp8", scheme="mxfp4", dense_bytes=2, compute_formats=HALF, stack="deepseek-mxfp4-fp8"),
        # Weights and activations in 4 bits where the card can (Blackwell).
        WeightFormat(
            name="nvfp4", scheme="nvfp4", dense_bytes=2, compute_formats=("nvfp4", *HALF), stack="modelopt-nvfp4"
        ),
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
