"""How errors are spread: how many weights are off by how much of a usual weight."""

from __future__ import annotations

import functools

import torch

# Twelve binades below the root mean square: what int8 leaves of most weights lies above 2^-9, what NF4 does above 2^-6.
LEAST_EXPONENT = -12
EDGES = tuple(2.0**exponent for exponent in range(LEAST_EXPONENT, 1))
# Tells each bin of a tensor to within a percent, and costs a thousandth of quantizing a large one.
SAMPLE_ELEMENTS = 2**16


def error_histogram(original: torch.Tensor, difference: torch.Tensor) -> tuple[int, ...]:
    """Return how many of the first weights have an error below each edge and above the one before.

    Errors are magnitudes over the weights' root mean square; the last count is of
    those at or above the last edge. Where all weights are 0, all errors count as 0.
    """
    weights = original.reshape(-1)[:SAMPLE_ELEMENTS]
    errors = difference.reshape(-1)[:SAMPLE_ELEMENTS].abs()
    root_mean_square = weights.double().square().mean().sqrt().float()
    scaled = errors / torch.where(root_mean_square > 0, root_mean_square, 1.0)
    bins = torch.bucketize(scaled, _edges(scaled.device), right=True)
    return tuple(torch.bincount(bins, minlength=len(EDGES) + 1).tolist())


@functools.cache
def _edges(device: torch.device) -> torch.Tensor:
    return torch.tensor(EDGES, dtype=torch.float32, device=device)
