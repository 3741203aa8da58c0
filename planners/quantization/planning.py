"""What quantizing a model's weights leaves: which are quantized, and the exact bytes before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec, Part, Weight
from plimsoll.planners.formats import number_format, storage_scheme, tensor_bytes
from plimsoll.planners.formats.storage import ScaledOver
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.quantization.stacks import STACK_OF_SCHEME, inputs_are_last, matrix_shape

# The dtypes that the quantizers read.
ORIGINAL_DTYPES = ("fp32", "bf16", "fp16")
# Can be sized, not yet made.
NOT_MADE = ("nvfp4",)
# vLLM, compressed_tensors_moe: experts of integers have scales a row or groups without zero points; transformers 5.23,
# integrations/compressed_tensors.py, reads no zero points of experts.
NOT_READ_FOR_EXPERTS = ("int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeSettings:
    """A scheme with the settings that hold for it.

    `block_size` is None for a scheme without blocks; `notes` name what was asked
    for and has no effect.
    """

    scheme: str
    double_quantization: bool
    block_size: int | None
    notes: tuple[str, ...] = ()

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the exact bytes of one tensor, [output features, input features]."""
        return tensor_bytes(
            self.scheme, shape, double_quantization=self.double_quantization, block_size=self.block_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedWeights:
    """Weights that keep their dtype: `name` has `*` where layers and experts differ."""

    name: str
    tensors: int
    parameters: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationEstimate:
    """The whole model's bytes before and after, weights that are left alone included.

    `bits_per_parameter` is over all parameters, `bits_per_quantized_parameter`
    over those that are quantized (null where none is).
    """

    scheme: str
    double_quantization: bool
    block_size: int | None
    original_dtype: str
    parameters: int
    quantized_parameters: int
    original_bytes: int
    quantized_bytes: int
    bits_per_parameter: float
    bits_per_quantized_parameter: float | None
    skipped: tuple[SkippedWeights, ...]
    assumptions: tuple[str, ...]


def scheme_settings(scheme: str, *, double_quantization: bool = False, block_size: int | None = None) -> SchemeSettings:
    """Return the settings that hold for a scheme, with a note on each that has no effect.

    Raises `UnknownName` for an unknown scheme, `InvalidQuestion` for a plain
    dtype or an impossible block size, and `NotYetAvailable` for a format that
    can be sized but not yet made.
    """
    storage = storage_scheme(scheme)
    if scheme in NOT_MADE:
        raise NotYetAvailable(f"{scheme} can be sized, not yet made. Use mxfp4 or nf4.", pointer="/scheme")
    if not (storage.scale_bits or storage.tensor_scale_bytes):
        raise InvalidQuestion(f"{scheme} is a plain dtype: nothing is quantized.", pointer="/scheme")
    notes = []
    if double_quantization and not storage.can_nest_scales:
        notes.append(f"double_quantization has no effect on {scheme}.")
    if block_size is not None and storage.block_size is None:
        notes.append(f"block_size has no effect on {scheme}, which has no blocks.")
    if storage.has_fixed_block_size and block_size not in (None, storage.block_size):
        notes.append(f"block_size has no effect on {scheme}, whose blocks are {storage.block_size} by definition.")
    resolved = storage.block_size if storage.has_fixed_block_size else storage.resolved_block_size(block_size)
    return SchemeSettings(
        scheme=scheme,
        double_quantization=double_quantization and storage.can_nest_scales,
        block_size=resolved,
        notes=tuple(notes),
    )


def check_writable(settings: SchemeSettings, spec: ModelSpec) -> None:
    """Raise `NotYetAvailable` where a model has a matrix that no known loader reads in the scheme.

    bitsandbytes and compressed-tensors know linear layers alone, [output
    features, input features], and compressed-tensors whole groups alone.
    """
    for block in spec.blocks:
        for weight in block.weights:
            obstacle = _obstacle_to_writing(weight, settings)
            if obstacle is not None and skip_reason(weight, settings.scheme) is None:
                raise NotYetAvailable(
                    f"A checkpoint cannot be written in {settings.scheme}: {_shown_name(weight)} {obstacle}.",
                    pointer="/output",
                )


def skip_reason(weight: Weight, scheme: str) -> str | None:
    """Return why a scheme leaves a weight as it is, or None where it is quantized."""
    return STACK_OF_SCHEME[scheme].reason_to_leave(weight)


def quantization_estimate(settings: SchemeSettings, spec: ModelSpec, *, original_dtype: str) -> QuantizationEstimate:
    """Return the exact bytes of a model before and after quantization with these settings.

    A tied head has no weight of its own and counts once, as the embedding.
    Raises `InvalidQuestion` for a dtype that is not read.
    """
    if original_dtype not in ORIGINAL_DTYPES:
        raise InvalidQuestion(f"{original_dtype[:40]!r} is not one of {', '.join(ORIGINAL_DTYPES)}.")
    element_bytes = number_format(original_dtype).stored_bits // 8
    skipped: list[SkippedWeights] = []
    quantized_parameters = quantized_bytes = 0
    for block in spec.blocks:
        for weight in block.weights:
            tensors = block.repeats * weight.tensors
            reason = skip_reason(weight, settings.scheme)
            if reason is None:
                quantized_parameters += tensors * math.prod(weight.shape)
                quantized_bytes += tensors * settings.tensor_bytes(matrix_shape(weight))
            else:
                skipped.append(_skipped(weight, tensors, element_bytes, reason))
    whole_bytes = quantized_bytes + sum(weights.bytes for weights in skipped)
    return QuantizationEstimate(
        scheme=settings.scheme,
        double_quantization=settings.double_quantization,
        block_size=settings.block_size,
        original_dtype=original_dtype,
        parameters=spec.parameters,
        quantized_parameters=quantized_parameters,
        original_bytes=spec.parameters * element_bytes,
        quantized_bytes=whole_bytes,
        bits_per_parameter=8 * whole_bytes / spec.parameters,
        bits_per_quantized_parameter=8 * quantized_bytes / quantized_parameters if quantized_parameters else None,
        skipped=tuple(skipped),
        assumptions=(*spec.assumptions, *settings.notes),
    )


def bytes_by_scheme(spec: ModelSpec, *, original_dtype: str) -> dict[str, int]:
    """Return what the whole model would weigh under every scheme that can be made, each with its own block size.

    `nf4-double` and `fp4-double` are those with their scales quantized once more.
    """
    result = {}
    for scheme in STACK_OF_SCHEME:
        if scheme in NOT_MADE:
            continue
        for double_quantization in (False, True) if storage_scheme(scheme).can_nest_scales else (False,):
            settings = scheme_settings(scheme, double_quantization=double_quantization)
            name = f"{scheme}-double" if double_quantization else scheme
            result[name] = quantization_estimate(settings, spec, original_dtype=original_dtype).quantized_bytes
    return result


def _skipped(weight: Weight, tensors: int, element_bytes: int, reason: str) -> SkippedWeights:
    parameters = tensors * math.prod(weight.shape)
    return SkippedWeights(
        name=_shown_name(weight),
        tensors=tensors,
        parameters=parameters,
        bytes=parameters * element_bytes,
        reason=reason,
    )


def _shown_name(weight: Weight) -> str:
    """Return a weight's name with `*` where layers and experts differ."""
    return weight.name.replace("{layer}", "*").replace("{expert}", "*")


def _obstacle_to_writing(weight: Weight, settings: SchemeSettings) -> str | None:
    columns, group_size = weight.shape[-1], settings.block_size
    if len(weight.shape) != 2 or not inputs_are_last(weight):
        return "is not stored as [output features, input features], the only order that can be written yet"
    if weight.part is Part.EXPERT and settings.scheme in NOT_READ_FOR_EXPERTS:
        return "is an expert's, for which vLLM and transformers read the scheme from no checkpoint"
    is_grouped = storage_scheme(settings.scheme).scaled_over is ScaledOver.GROUP
    if is_grouped and group_size is not None and columns % group_size:
        return f"has {columns} input features, which are no whole groups of {group_size}"
    return None
