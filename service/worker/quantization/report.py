"""What a quantization job answers: each tensor, the whole model and the worst tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planners.quantization import QuantizationEstimate, SkippedWeights
from service.worker.quantization.error import ErrorSums

WORST_TENSORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """One quantized tensor. `seconds` is the quantization's own time, `bytes_per_second` original bytes over it.

    `relative_error` is the Frobenius norm of the error over that of the
    weights; `sqnr_db` is null where there is no error.
    """

    name: str
    shape: tuple[int, ...]
    original_bytes: int
    quantized_bytes: int
    relative_error: float
    sqnr_db: float | None
    max_abs_error: float
    seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A whole model quantized.

    Bytes count the weights left alone too; errors, `seconds` and
    `bytes_per_second` are of the quantized tensors. `wall_seconds` includes
    initialisation and measurement.
    """

    scheme: str
    double_quantization: bool
    block_size: int | None
    original_dtype: str
    original_bytes: int
    quantized_bytes: int
    bits_per_parameter: float
    bits_per_quantized_parameter: float | None
    parameters: int
    quantized_parameters: int
    relative_error: float
    sqnr_db: float | None
    max_abs_error: float
    seconds: float
    bytes_per_second: float | None
    wall_seconds: float
    peak_host_bytes: int | None
    peak_device_bytes: int
    device: str
    torch_version: str
    skipped: tuple[SkippedWeights, ...]
    worst_tensors: tuple[TensorReport, ...]
    tensors: tuple[TensorReport, ...]
    assumptions: tuple[str, ...]


def model_report(
    estimate: QuantizationEstimate,
    tensors: Sequence[TensorReport],
    sums: ErrorSums,
    *,
    device: str,
    torch_version: str,
    wall_seconds: float,
    peak_host_bytes: int | None,
    peak_device_bytes: int,
    notes: tuple[str, ...],
) -> ModelReport:
    """Return the report of a model from those of its tensors.

    The bytes are those measured, plus those of the weights left alone.
    """
    skipped_bytes = sum(weights.bytes for weights in estimate.skipped)
    quantized_bytes = sum(tensor.quantized_bytes for tensor in tensors)
    original_bytes = sum(tensor.original_bytes for tensor in tensors)
    seconds = sum(tensor.seconds for tensor in tensors)
    worst = sorted(tensors, key=lambda tensor: tensor.relative_error, reverse=True)[:WORST_TENSORS]
    return ModelReport(
        scheme=estimate.scheme,
        double_quantization=estimate.double_quantization,
        block_size=estimate.block_size,
        original_dtype=estimate.original_dtype,
        original_bytes=original_bytes + skipped_bytes,
        quantized_bytes=quantized_bytes + skipped_bytes,
        bits_per_parameter=8 * (quantized_bytes + skipped_bytes) / estimate.parameters,
        bits_per_quantized_parameter=(
            8 * quantized_bytes / estimate.quantized_parameters if estimate.quantized_parameters else None
        ),
        parameters=estimate.parameters,
        quantized_parameters=estimate.quantized_parameters,
        relative_error=sums.relative_error,
        sqnr_db=sums.sqnr_db,
        max_abs_error=sums.max_abs_error,
        seconds=seconds,
        bytes_per_second=original_bytes / seconds if seconds else None,
        wall_seconds=wall_seconds,
        peak_host_bytes=peak_host_bytes,
        peak_device_bytes=peak_device_bytes,
        device=device,
        torch_version=torch_version,
        skipped=estimate.skipped,
        worst_tensors=tuple(worst),
        tensors=tuple(tensors),
        assumptions=(*estimate.assumptions, *notes),
    )
