"""How often GPUs of published trainings and clusters fail, and how sure their counts are of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from plimsoll.planners.ground.data_files import read_toml, record
from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.ground.units import DAYS_PER_MONTH

TABLE = Path(__file__).parent / "failure_rates.toml"
# What jobs were planned with before published counts were at hand, by no source on record: six times Llama 3's.
PESSIMISTIC = "pessimistic"
PESSIMISTIC_GPU_FAILURES_PER_MONTH = 0.08
# The share of rates that an interval is to hold, as the bands of memory and time hold measured values.
COVERAGE = 0.90
# Counts are published in two or three digits.
RATE_DIGITS = 3
# Halvings after which an interval's end is known to more digits than a float has.
HALVINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRate:
    """Failures in so many days of one GPU, of one source; what is no GPU is asked for by its name alone."""

    name: str
    title: str
    counted: str
    source: str
    failures: float
    gpu_days: float
    is_count: bool = False
    is_gpu: bool = True
    low: float | None = None
    high: float | None = None

    @property
    def per_gpu_month(self) -> float:
        """Return the part of the GPUs that fails in a month."""
        return self._per_month(self.failures)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the least and the most that the rate may be by its own count; None where nothing bounds it."""
        if self.is_count:
            low, high = poisson_interval(round(self.failures))
            return self._per_month(low), self._per_month(high)
        if self.low is None or self.high is None:
            return None
        return self._per_month(self.low), self._per_month(self.high)

    def _per_month(self, failures: float) -> float:
        return float(f"{failures / self.gpu_days * DAYS_PER_MONTH:.{RATE_DIGITS}g}")


@functools.cache
def published_rates() -> Mapping[str, PublishedRate]:
    """Return every published rate by its name."""
    rows = read_toml(TABLE)["published"]
    return {row["name"]: record(PublishedRate, row) for row in rows}


def failures_per_gpu_month(name: str) -> float:
    """Return a rate by its name. Raises `UnknownName` for one that nobody knows."""
    if name == PESSIMISTIC:
        return PESSIMISTIC_GPU_FAILURES_PER_MONTH
    if name not in published_rates():
        raise UnknownName(name, (*published_rates(), PESSIMISTIC))
    return published_rates()[name].per_gpu_month


@functools.cache
def published_range() -> tuple[PublishedRate, PublishedRate]:
    """Return the GPU clusters that failed the least and the most often."""
    of_gpus = [each for each in published_rates().values() if each.is_gpu]
    return min(of_gpus, key=lambda each: each.per_gpu_month), max(of_gpus, key=lambda each: each.per_gpu_month)


@functools.cache
def poisson_interval(count: int, coverage: float = COVERAGE) -> tuple[float, float]:
    """Return the means between which lies that of a Poisson count, with at most (1 - coverage)/2 outside at each end.

    Source: Garwood 1936, https://doi.org/10.1093/biomet/28.3-4.437
    """
    outside = (1.0 - coverage) / 2.0
    most = count + 10.0 * math.sqrt(count + 1.0) + 10.0
    low = 0.0 if count == 0 else _where(lambda mean: 1.0 - _at_most(count - 1, mean) >= outside, most)
    return low, _where(lambda mean: _at_most(count, mean) <= outside, most)


def _at_most(count: int, mean: float) -> float:
    """Return how likely a Poisson variable of a mean is no more than a count."""
    if mean <= 0.0:
        return 1.0
    return math.fsum(math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) for number in range(count + 1))


def _where(is_beyond: Callable[[float], bool], most: float) -> float:
    """Return the least number below `most` from which on a condition holds."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high
