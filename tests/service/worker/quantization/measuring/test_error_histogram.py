"""How errors are counted by their size."""

import torch

from plimsoll.service.worker.quantization.measuring.error_histogram import EDGES, SAMPLE_ELEMENTS, error_histogram


def test_errors_are_counted_between_edges_that_double():
    # Root mean square 1. Below 2^-12; at 2^-12 and just above; at 1/2; at 1 and beyond.
    difference = torch.tensor([0.0, 2.0**-12, -(2.0**-12) * 1.5, 0.5, 1.0, -3.0])
    counts = error_histogram(torch.ones(6), difference)
    assert counts == (1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2)
    assert len(counts) == len(EDGES) + 1


def test_errors_are_relative_to_the_weights():
    # Errors of 1 on weights of 8: 2^-3 opens the tenth bin after the one below 2^-12.
    assert error_histogram(torch.full((4,), 8.0), torch.ones(4))[10] == 4


def test_zeros_have_no_error():
    assert error_histogram(torch.zeros(3), torch.zeros(3))[0] == 3


def test_a_large_tensor_is_sampled():
    line = torch.ones(SAMPLE_ELEMENTS + 1)
    assert sum(error_histogram(line, line)) == SAMPLE_ELEMENTS
