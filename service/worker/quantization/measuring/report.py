"""The result of a quantization job: each tensor, the whole model and the worst tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.planners.quantization.planning import QuantizationEstimate, SkippedWeights
from plimsoll.service.worker.quantization.measuring.error import ErrorSums
from plimsoll.service.worker.quantization.measuring.error_histogram import EDGES

# Of all tensors, those with the largest relative error are listed again, so many of them.
WORST_TENSORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """One quantized tensor. `seconds` is the quantization's own time, `bytes_per_second` original bytes over it.

    `relative_error` is the Frobenius norm of the error over that of the weights, `max_abs_error` the largest of one
    weight, and `sqnr_db` the signal-to-quantization-noise ratio in decibels, null where there is no error.
    `output_relative_error` is the relative error of a layer's output for random activations. `outlier_columns` counts
    the input features that LLM.int8 would call outliers, null for other schemes.
    """

    name: str
    shape: tuple[int, ...]
    original_bytes: int
    quantized_bytes: int
    relative_error: float
    sqnr_db: float | None
    max_abs_error: float
    output_relative_error: float
    outlier_columns: int | None
    seconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport:
    """The checkpoint that was written: its folder, the bytes of its weight files, and the SHA-256 of every file."""

    path: str
    file_bytes: int
    sha256: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorHistogram:
    """How many weights of a sample have which error, as a fraction of their tensor's root mean square.

    `counts` has one entry more than `edges`: the first is of errors below the first
    edge, the last of those at or above the last.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A whole model quantized; errors and rates are those of `TensorReport`.

    `original_bytes`, `quantized_bytes` and `bits_per_parameter` count the weights left alone too (`skipped`, by
    reason); errors, `bits_per_quantized_parameter` (null where no tensor is quantized), `seconds` and
    `bytes_per_second` are of the quantized tensors. `wall_seconds` includes initialisation or reading, measurement
    and writing. `peak_host_bytes` are the most that the job's process held, null where its system does not tell, and
    `peak_device_bytes` the most on the GPU, 0 without one. `quantized_bytes_by_scheme` is what the whole model would
    weigh in each. `output` is null where nothing was written.
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
    output_relative_error: float
    error_histogram: ErrorHistogram
    seconds: float
    bytes_per_second: float | None
    wall_seconds: float
    peak_host_bytes: int | None
    peak_device_bytes: int
    device: str
    torch_version: str
    skipped: tuple[SkippedWeights, ...]
    quantized_bytes_by_scheme: Mapping[str, int]
    output: OutputReport | None
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
    skipped_bytes: int,
    quantized_bytes_by_scheme: Mapping[str, int],
    output: OutputReport | None,
    wall_seconds: float,
    peak_host_bytes: int | None,
    peak_device_bytes: int,
    notes: tuple[str, ...],
) -> ModelReport:
    """Return the report of a model from those of its quantized tensors and their errors' `sums`.

    `skipped_bytes` are those of the weights left alone, as they are stored; `estimate` is the planner's answer to the
    same question, of which the counts of parameters are taken and no bytes.
    """
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
        output_relative_error=sums.output_relative_error,
        error_histogram=ErrorHistogram(edges=EDGES, counts=sums.histogram),
        seconds=seconds,
        bytes_per_second=original_bytes / seconds if seconds else None,
        wall_seconds=wall_seconds,
        peak_host_bytes=peak_host_bytes,
        peak_device_bytes=peak_device_bytes,
        device=device,
        torch_version=torch_version,
        skipped=estimate.skipped,
        quantized_bytes_by_scheme=quantized_bytes_by_scheme,
        output=output,
        worst_tensors=tuple(worst),
        tensors=tuple(tensors),
        assumptions=(*estimate.assumptions, *notes),
    )
