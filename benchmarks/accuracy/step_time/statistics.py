"""What is said of many cases: errors, bias, coverage, rank correlation and regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of estimates as fractions of the measured; `bias` is the median signed error."""

    cases: int
    mean: float
    median: float
    bias: float
    coverage: float


def errors(estimated: FloatArray, measured: FloatArray, low: FloatArray, high: FloatArray) -> Errors:
    """Return the errors of some cases; all are NaN where there is none."""
    if not measured.size:
        return Errors(cases=0, mean=np.nan, median=np.nan, bias=np.nan, coverage=np.nan)
    signed = estimated / measured - 1
    inside = (measured >= estimated * low) & (measured <= estimated * high)
    return Errors(
        cases=int(measured.size),
        mean=float(np.abs(signed).mean()),
        median=float(np.median(np.abs(signed))),
        bias=float(np.median(signed)),
        coverage=float(inside.mean()),
    )


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Return Kendall's τ-b, which allows for ties (Kendall 1945, doi:10.1093/biomet/33.3.239)."""
    upper = np.triu_indices(first.size, 1)
    one = np.sign(first[upper[0]] - first[upper[1]])
    other = np.sign(second[upper[0]] - second[upper[1]])
    untied = np.sqrt(np.count_nonzero(one) * np.count_nonzero(other))
    return float((one * other).sum() / untied) if untied else np.nan


def regret(estimated: FloatArray, measured: FloatArray) -> float:
    """Return how much slower the layout that the estimate puts first is than the best, as a fraction."""
    return float(measured[np.argmin(estimated)] / measured.min() - 1)


def weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    """Return the mean of values that are numbers, by weight."""
    array, weight = np.array(values, dtype=np.float64), np.array(weights, dtype=np.float64)
    known = np.isfinite(array)
    return float((array[known] * weight[known]).sum() / weight[known].sum()) if known.any() else np.nan
