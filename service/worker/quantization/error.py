"""How far quantized weights are from the original ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from service.worker.quantization.chunk_workers import ChunkWorkers
from service.worker.quantization.quantized import QuantizedTensor, Quantizer

# Within these a sum of squares in fp32 neither overflows nor loses its small terms.
LEAST_SAFE_SQUARES, LARGEST_SAFE_SQUARES = 1e-24, 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSums:
    """Sums over some weights: squares of the originals and of the differences, and the largest difference."""

    signal_squares: float = 0.0
    error_squares: float = 0.0
    max_abs_error: float = 0.0

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """Return the sums over both."""
        return ErrorSums(
            signal_squares=self.signal_squares + other.signal_squares,
            error_squares=self.error_squares + other.error_squares,
            max_abs_error=max(self.max_abs_error, other.max_abs_error),
        )

    @property
    def relative_error(self) -> float:
        """Return the Frobenius norm of the differences over that of the originals; 0 for zeros."""
        return math.sqrt(self.error_squares / self.signal_squares) if self.signal_squares else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Return the signal-to-quantization-noise ratio in decibels; None where there is no noise."""
        if not self.error_squares or not self.signal_squares:
            return None
        return 10 * math.log10(self.signal_squares / self.error_squares)


def quantization_error(
    weight: torch.Tensor, quantized: QuantizedTensor, scheme: Quantizer, workers: ChunkWorkers
) -> ErrorSums:
    """Return the error of the stored values, in fp32, before any compute dtype rounds them again."""
    line = weight.reshape(-1)
    restore = scheme.restore(quantized)

    def span_error(start: int, stop: int) -> ErrorSums:
        return _error(line[start:stop].float(), restore(start, stop))

    sums = ErrorSums()
    for part in workers.map(span_error, scheme.spans(quantized.shape, workers.chunk_elements)):
        sums += part
    return sums


def _error(original: torch.Tensor, restored: torch.Tensor) -> ErrorSums:
    signal_squares = float(torch.dot(original, original))
    if not LEAST_SAFE_SQUARES < signal_squares < LARGEST_SAFE_SQUARES and original.dtype is not torch.float64:
        return _error(original.double(), restored.double())
    difference = restored.sub_(original)
    return ErrorSums(
        signal_squares=signal_squares,
        error_squares=float(torch.dot(difference, difference)),
        max_abs_error=float(difference.abs_().amax()),
    )
