"""How far quantized weights are from the original ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor, Quantizer

# Within these a sum of squares in fp32 neither overflows nor loses its small terms.
LEAST_SAFE_SQUARES, LARGEST_SAFE_SQUARES = 1e-24, 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSums:
    """Sums over some weights: squares of the originals and of the differences, and the largest difference.

    `output_squares` and `output_error_squares` are the same over a layer's outputs,
    `histogram` the counts that `error_histogram` gives.
    """

    signal_squares: float = 0.0
    error_squares: float = 0.0
    max_abs_error: float = 0.0
    output_squares: float = 0.0
    output_error_squares: float = 0.0
    histogram: tuple[int, ...] = ()

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """Return the sums over both."""
        return ErrorSums(
            signal_squares=self.signal_squares + other.signal_squares,
            error_squares=self.error_squares + other.error_squares,
            max_abs_error=max(self.max_abs_error, other.max_abs_error),
            output_squares=self.output_squares + other.output_squares,
            output_error_squares=self.output_error_squares + other.output_error_squares,
            histogram=tuple(map(sum, zip_longest(self.histogram, other.histogram, fillvalue=0))),
        )

    @property
    def relative_error(self) -> float:
        """Return the Frobenius norm of the differences over that of the originals; 0 for zeros."""
        return math.sqrt(self.error_squares / self.signal_squares) if self.signal_squares else 0.0

    @property
    def output_relative_error(self) -> float:
        """Return the norm of the outputs' differences over that of the outputs; 0 for zeros."""
        return math.sqrt(self.output_error_squares / self.output_squares) if self.output_squares else 0.0

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
    restore = scheme.restore(quantized, workers)
    kernels = workers.kernels_for(line)

    def span_error(start: int, stop: int) -> ErrorSums:
        original, restored = line[start:stop], restore(start, stop)
        if kernels is not None:
            signal_squares, error_squares, max_abs_error = kernels.sum_errors(original, restored)
            if LEAST_SAFE_SQUARES < signal_squares < LARGEST_SAFE_SQUARES:
                return ErrorSums(
                    signal_squares=signal_squares, error_squares=error_squares, max_abs_error=max_abs_error
                )
        return _error(original.float(), restored)

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
