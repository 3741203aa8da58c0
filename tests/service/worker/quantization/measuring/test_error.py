"""Error sums, and what they say."""

import math

import pytest
import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.error import ErrorSums, quantization_error
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor


class Shifted:
    """A scheme that restores every weight with a constant added."""

    def __init__(self, weight, shift):
        self.line, self.shift = weight.view(-1).float(), shift

    def spans(self, shape, chunk_elements):
        return [(0, 2), (2, self.line.numel())]

    def restore(self, quantized, workers):
        return lambda start, stop: self.line[start:stop] + self.shift

    def quantize(self, weight, workers):
        return QuantizedTensor(shape=tuple(weight.shape), parts={})


def measured(weight, shift):
    scheme = Shifted(weight, shift)
    with ChunkWorkers(threads=1) as workers:
        return quantization_error(weight, scheme.quantize(weight, workers), scheme, workers)


def test_relative_error_is_the_ratio_of_frobenius_norms():
    # Weights 3, 4, 0, 0 have norm 5; four errors of 0.5 have norm 1: 0.2, and 20 log10(5) = 13.98 dB.
    error = measured(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 0.5)
    assert error.relative_error == pytest.approx(0.2)
    assert error.sqnr_db == pytest.approx(13.979, abs=1e-3)
    assert error.max_abs_error == 0.5


def test_weights_without_error_have_no_ratio_in_decibels():
    error = measured(torch.ones(2, 2), 0.0)
    assert error.relative_error == 0.0
    assert error.sqnr_db is None


def test_zeros_have_no_relative_error():
    assert ErrorSums().relative_error == 0.0
    assert ErrorSums().sqnr_db is None


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_fp32_are_summed_in_double_precision(size):
    error = measured(torch.full((2, 2), size), size / 4)
    assert error.relative_error == pytest.approx(0.25, rel=1e-6)


def test_sums_add_up_and_keep_the_largest_error():
    left = ErrorSums(signal_squares=9.0, error_squares=1.0, max_abs_error=1.0)
    both = left + ErrorSums(signal_squares=16.0, error_squares=0.0, max_abs_error=0.5)
    assert both.relative_error == pytest.approx(math.sqrt(1 / 25))
    assert both.max_abs_error == 1.0
