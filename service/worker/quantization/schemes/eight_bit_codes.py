"""Weights as int8 and as e4m3 by a scale of their largest magnitude, however many share it.

Where a scale is 0 (zeros, or numbers so small that it vanishes) all codes are 0.
"""

from __future__ import annotations

import torch

from plimsoll.planners.formats.number_format import LARGEST_E4M3

# Twice the largest magnitude is the range and 254 the steps from -127 to 127.
INT8_STEPS = 254
INT8_LEAST, INT8_LARGEST = -128, 127


def int8_scales(largest: torch.Tensor) -> torch.Tensor:
    """Return 2 x largest / 254; infinite where twice the largest magnitude exceeds fp32."""
    return 2 * largest / INT8_STEPS


def int8_codes(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return fp32 values over scales that broadcast with them, rounded to steps and cut, still in fp32."""
    return (values / _divisors(scales)).round_().clamp_(INT8_LEAST, INT8_LARGEST)


def e4m3_scales(largest: torch.Tensor) -> torch.Tensor:
    """Return largest / 448, e4m3's largest value."""
    return largest / LARGEST_E4M3


def e4m3_codes(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return fp32 values over scales that broadcast with them, cut to e4m3's range, still in fp32."""
    return (values / _divisors(scales)).clamp_(-LARGEST_E4M3, LARGEST_E4M3)


def _divisors(scales: torch.Tensor) -> torch.Tensor:
    """Return the scales with 1 in the place of 0."""
    return torch.where(scales > 0, scales, 1.0)
