"""What comes in: how long prompts and answers are, what of them is cached, what is drafted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import LengthDistribution

# The parts of all requests at which percentiles stand; the ends follow by the slope beside them.
PERCENTILES = (0.5, 0.9, 0.99)
# Lengths a distribution is stood for by, each for an equal part of the requests.
SAMPLES = 8
# The longest request beside the highest percentile that is given, at most, and halvings in which an end is found.
LONGEST_FACTOR = 64.0
HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of request. `cached_fraction` of a prompt's tokens is found in the prefix cache.

    `draft_tokens` are proposed at once and each accepted with `acceptance_fraction`
    as long as those before it were.
    """

    input_tokens: int
    output_tokens: int
    cached_fraction: float = 0.0
    draft_tokens: int = 0
    acceptance_fraction: float = 0.0

    @property
    def prefill_tokens(self) -> int:
        """Return the prompt's tokens that are computed: at least the last one."""
        return max(1, math.ceil(self.input_tokens * (1 - self.cached_fraction)))

    @property
    def context_tokens(self) -> float:
        """Return the tokens a generated one looks back on, on average."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens a step yields: (1 - a^(n+1)) / (1 - a) of n drafted.

        Source: Leviathan, Kalman & Matias 2023, arXiv:2211.17192, equation 1.
        """
        if self.acceptance_fraction == 1:
            return self.draft_tokens + 1.0
        accepted = self.acceptance_fraction ** (self.draft_tokens + 1)
        return (1 - accepted) / (1 - self.acceptance_fraction)


def mean_tokens(distribution: LengthDistribution, pointer: str) -> int:
    """Return a distribution's mean length, its own or that of its samples, at least one token."""
    if distribution.mean is not None:
        return max(1, round(distribution.mean))
    lengths = sample_tokens(distribution, pointer)
    return max(1, round(sum(lengths) / len(lengths)))


def sample_tokens(distribution: LengthDistribution, pointer: str) -> tuple[int, ...]:
    """Return lengths that stand each for an equal part of the requests; raises for one that makes no sense."""
    if distribution.lengths:
        points = _histogram_points(distribution, pointer)
    else:
        points = _percentile_points(distribution, pointer)
        if distribution.mean is not None and points[0][0] > 0:
            points = _with_mean(points, distribution.mean, pointer)
    return tuple(max(1, round(length)) for length in _lengths_of(points))


def _lengths_of(points: Sequence[tuple[float, float]]) -> list[float]:
    return [_length_at(points, (index + 0.5) / SAMPLES) for index in range(SAMPLES)]


def _histogram_points(distribution: LengthDistribution, pointer: str) -> list[tuple[float, float]]:
    lengths, counts = distribution.lengths, distribution.counts
    if len(lengths) != len(counts) or list(lengths) != sorted(set(lengths)) or not sum(counts) > 0:
        raise InvalidQuestion(
            "A histogram has as many counts as lengths, lengths that rise, and a count above 0.",
            pointer=f"{pointer}/histogram",
        )
    total = sum(counts)
    below = itertools.accumulate(counts)
    return [(0.0, lengths[0]), *((count / total, length) for count, length in zip(below, lengths, strict=True))]


def _percentile_points(distribution: LengthDistribution, pointer: str) -> list[tuple[float, float]]:
    """Return (part of all, length), in between which lengths are taken to rise evenly in their logarithm."""
    given = (distribution.p50, distribution.p90, distribution.p99)
    points = [(part, length) for part, length in zip(PERCENTILES, given, strict=True) if length is not None]
    if not points:
        if distribution.mean is None:
            raise InvalidQuestion("A distribution needs a mean, a percentile or a histogram.", pointer=pointer)
        return [(0.0, distribution.mean), (1.0, distribution.mean)]
    lengths = [length for _, length in points]
    if lengths != sorted(lengths):
        raise InvalidQuestion("Percentiles rise: p50, p90, p99.", pointer=pointer)
    return points


def _with_mean(points: Sequence[tuple[float, float]], mean: float, pointer: str) -> list[tuple[float, float]]:
    """Return the points with an end such that their samples have the mean: the shortest length, or the longest.

    Lengths below the lowest percentile rise from the shortest to it, those above the highest from it to the longest.
    """

    def off(end: float, part: float) -> float:
        return sum(_lengths_of(sorted([*points, (part, end)]))) / SAMPLES - mean

    lowest, highest = points[0][1], points[-1][1]
    is_longer = off(lowest, 0.0) < 0
    part, low, high = (1.0, highest, highest * LONGEST_FACTOR) if is_longer else (0.0, 1.0, lowest)
    if off(low, part) > 0 or off(high, part) < 0:
        raise InvalidQuestion(
            f"A mean of {mean:,.0f} tokens does not go with these percentiles, with which it lies between "
            f"{off(1.0, 0.0) + mean:,.0f} and {off(highest * LONGEST_FACTOR, 1.0) + mean:,.0f}: leave out one of them.",
            pointer=f"{pointer}/mean",
        )
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if off(middle, part) < 0 else (low, middle)
    return sorted([*points, (part, high)])


def _length_at(points: Sequence[tuple[float, float]], part: float) -> float:
    """Return the length that `part` of the requests do not exceed; beyond the ends the nearest stands."""
    if part <= points[0][0]:
        return points[0][1]
    for (before, low), (after, high) in itertools.pairwise(points):
        if part <= after:
            share = (part - before) / (after - before) if after > before else 1.0
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return points[-1][1]
