"""Least squares of logarithms that are held to what ships: Gauss-Newton steps, and what measurements said of each.

    minimise  sum (residual_i(x) / error_i)^2 + sum (x_k / spread)^2

Ridge regression (Hoerl & Kennard 1970, https://doi.org/10.1080/00401706.1970.10488634) in
the weights of Bayes. What the measurements and what the prior contributed to each offset
is the diagonal of the averaging kernel (Rodgers 2000, Inverse Methods for Atmospheric
Sounding, section 2.4); residuals of a fit without each measurement follow in closed form
(Allen 1974, https://doi.org/10.1080/00401706.1974.10489157).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

MOST_STEPS = 12
SMALLEST_STEP = 1e-6
DIFFERENCE = 1e-4

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """A fit's offsets, each measurement's residual with it and without it in the fit, and what is known of each offset.

    `resolution` is the measurements' part, 0 to 1; `unknown` one standard deviation of what is left.
    """

    offsets: FloatArray
    residual: FloatArray
    left_out: FloatArray
    resolution: FloatArray
    unknown: FloatArray


def ridge(
    residuals: Callable[[FloatArray], FloatArray], *, errors: FloatArray, spread: float, ceiling: FloatArray
) -> Ridge:
    """Return the offsets of least squares; one that would exceed its `ceiling` stays there.

    `residuals` are of given offsets, `errors` one standard deviation of each, `spread` that of every offset about 0.
    """
    offsets, weights = np.zeros(len(ceiling)), errors**-2
    firmness = np.eye(len(ceiling)) * spread**-2
    for _ in range(MOST_STEPS):
        residual = residuals(offsets)
        slopes = _slopes(residuals, offsets, residual)
        curvature = slopes.T @ (weights[:, None] * slopes) + firmness
        step = np.linalg.solve(curvature, slopes.T @ (weights * residual) - firmness @ offsets)
        moved = np.minimum(offsets + step, ceiling)
        is_done = bool(np.abs(moved - offsets).max() < SMALLEST_STEP)
        offsets = moved
        if is_done:
            break
    offsets = np.where(np.abs(offsets) < SMALLEST_STEP, 0.0, offsets)
    residual = residuals(offsets)
    slopes = _slopes(residuals, offsets, residual)
    informed = slopes.T @ (weights[:, None] * slopes)
    covariance = np.linalg.inv(informed + firmness)
    leverage = np.einsum("ij,jk,ik->i", slopes, covariance, slopes) * weights
    return Ridge(
        offsets=offsets,
        residual=residual,
        left_out=residual / (1.0 - leverage),
        resolution=np.clip(np.diag(covariance @ informed), 0.0, 1.0),
        unknown=np.sqrt(np.diag(covariance)),
    )


def _slopes(residuals: Callable[[FloatArray], FloatArray], offsets: FloatArray, residual: FloatArray) -> FloatArray:
    """Return the change of each estimate's logarithm with each offset."""
    moved = np.eye(len(offsets)) * DIFFERENCE
    return np.stack([(residual - residuals(offsets + step)) / DIFFERENCE for step in moved], axis=1)
