"""One tensor quantized and measured: sizes, time, error of its weights and of its layer's output."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from plimsoll.planners.quantization.planning import SchemeSettings
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.error import ErrorSums, quantization_error
from plimsoll.service.worker.quantization.measuring.layer_output import sampled_error
from plimsoll.service.worker.quantization.measuring.report import TensorReport
from plimsoll.service.worker.quantization.schemes.quantized import NonFiniteWeights, QuantizedTensor, rows_and_columns
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

INT8_SCHEME = "int8-channel"
# From this magnitude LLM.int8 calls a feature an outlier (Dettmers et al. 2022, section 3.2).
OUTLIER_MAGNITUDE = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTensor:
    """A tensor's report and the sums behind its errors."""

    report: TensorReport
    sums: ErrorSums


class TensorMeasurer:
    """Quantizes and measures tensors with one scheme."""

    def __init__(self, settings: SchemeSettings, workers: ChunkWorkers) -> None:
        self._settings = settings
        self._scheme = quantizer(settings)
        self._workers = workers

    def measure(self, name: str, weight: torch.Tensor) -> tuple[MeasuredTensor, QuantizedTensor]:
        """Quantize one [..., output features, input features] tensor and measure it.

        The time is the quantization's own: reading, restoring and comparing are
        left out. Raises `NonFiniteWeights` naming the tensor.
        """
        _wait_for(weight.device)
        started = time.perf_counter()
        try:
            quantized = self._scheme.quantize(weight, self._workers)
        except NonFiniteWeights as error:
            raise NonFiniteWeights(f"{name}: {error}") from error
        _wait_for(weight.device)
        seconds = time.perf_counter() - started
        sums = quantization_error(weight, quantized, self._scheme, self._workers) + sampled_error(
            weight, quantized, self._scheme, self._workers
        )
        report = TensorReport(
            name=name,
            shape=tuple(weight.shape),
            original_bytes=weight.nbytes,
            quantized_bytes=quantized.bytes,
            relative_error=sums.relative_error,
            sqnr_db=sums.sqnr_db,
            max_abs_error=sums.max_abs_error,
            output_relative_error=sums.output_relative_error,
            outlier_columns=self._outlier_columns(weight, quantized),
            seconds=seconds,
            bytes_per_second=weight.nbytes / seconds,
        )
        return MeasuredTensor(report=report, sums=sums), quantized

    def _outlier_columns(self, weight: torch.Tensor, quantized: QuantizedTensor) -> int | None:
        """Return how many input features have a weight that LLM.int8 would call an outlier; None for other schemes."""
        if self._settings.scheme != INT8_SCHEME:
            return None
        if bool(quantized.parts["absmax"].amax() < OUTLIER_MAGNITUDE):
            return 0
        _, columns = rows_and_columns(tuple(weight.shape))
        largest = weight.reshape(-1, columns).abs().amax(dim=0)
        return int((largest >= OUTLIER_MAGNITUDE).sum())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
