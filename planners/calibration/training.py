"""A site's own efficiencies from what it measured: small least squares with the shipped figures as the prior.

Logarithms of times are fitted by logarithms of the fractions x that a GPU
reaches, relative to what ships. Each measurement weighs as much as its own error
allows, and each fraction is held to its shipped value as firmly as the GPU
generations differ among themselves, so that few measurements move little:

    minimise  sum ((ln measured - ln estimate(x)) / error)^2 + sum (x / PRIOR)^2

Solved, and told apart what the measurements said from what ships, by `planners/calibration/ridge.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, pstdev
from typing import Any

import numpy as np

from plimsoll.planners.calibration.ridge import FloatArray, ridge
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import duration, figure
from plimsoll.planners.timing.efficiency import GpuEfficiency, StackEfficiency, load_efficiency, shipped_generations

FRACTIONS = (
    "matmul_peak_fraction",
    "low_precision_peak_fraction",
    "attention_peak_fraction",
    "memory_bandwidth_fraction",
    "link_fraction",
    "network_fraction",
)
# One GPU's benchmark stands for the site's: GPUs of one kind differ by 8 % on average, and the slowest outliers take
# 1.5 times the median (Sinha et al. 2022, arXiv:2208.11035).
MICROBENCHMARK_ERROR = 0.08
MOST_BETWEEN_REPEATS = 1.5
# Beyond this a measurement was of something else: milliseconds for seconds, or one GPU's tokens for a node's.
MOST_FROM_ESTIMATE = 10.0
# The measurements, rather than the prior, decide a fraction from here on.
LEAST_RESOLUTION = 0.5
# The shipped band of a stack counts as much as so many runs of the site's own.
PRIOR_RUNS = 5

Estimate = Callable[[GpuEfficiency], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured time; `estimate` returns the planner's own for given efficiencies.

    Observations of equal `what` are repeats of one measurement. `stack` is the
    training stack of a run, empty for a benchmark of a kernel or a collective.
    """

    pointer: str
    what: str
    kind: str
    stack: str
    measured_seconds: float
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedFraction:
    """One efficiency before and after; `resolution` is the measurements' part in it, 0 to 1.

    Below a half the shipped figure decides and `is_identifiable` is false.
    `relative_error` is one standard deviation of what is left unknown.
    """

    name: str
    shipped: float
    fitted: float
    resolution: float
    is_identifiable: bool
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedObservation:
    """One measurement beside the estimates; `left_out_seconds` is that of a fit without it."""

    pointers: tuple[str, ...]
    what: str
    kind: str
    measured_seconds: float
    shipped_seconds: float
    fitted_seconds: float
    left_out_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How far estimates are from the measurements, estimate/measured - 1."""

    mean_absolute: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBand:
    """The band about a stack's step time; `spread` is its width beside the shipped one, on a logarithmic scale."""

    stack: str
    runs: int
    spread: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted, what of it the measurements could tell, and how well it fits."""

    fractions: tuple[FittedFraction, ...]
    observations: tuple[CheckedObservation, ...]
    error_shipped: FitError
    error_fitted: FitError
    error_left_out: FitError
    bands: tuple[StackBand, ...]

    @property
    def fitted(self) -> Mapping[str, float]:
        """Return the fractions that the measurements moved, by name."""
        return {each.name: each.fitted for each in self.fractions if each.fitted != each.shipped}


def calibrate(observations: Sequence[Observation], shipped: GpuEfficiency) -> Calibration:
    """Return the efficiencies that explain the measurements best without leaving what ships more than they must.

    Raises `InvalidQuestion` at a measurement that is absurd or contradicts another.
    """
    for observation in observations:
        _refuse_absurd(observation, shipped)
    groups = _repeats(observations)
    fit = _Fit(groups, shipped)
    return Calibration(
        fractions=fit.fractions(),
        observations=fit.checked(),
        error_shipped=fit_error(fit.residuals(np.zeros(len(FRACTIONS)))),
        error_fitted=fit_error(fit.residual),
        error_left_out=fit_error(fit.left_out),
        bands=fit.bands(),
    )


def fit_error(residual: FloatArray) -> FitError:
    """Return the mean errors of estimates whose ln(measured/estimate) these are, 0 where nothing was measured."""
    if not len(residual):
        return FitError(mean_absolute=0.0, bias=0.0)
    relative = np.exp(-residual) - 1.0
    return FitError(mean_absolute=float(np.abs(relative).mean()), bias=float(relative.mean()))


def band_spread(left_out: FloatArray, shipped_error: float) -> float:
    """Return how many times as wide as the shipped band that of a site's own runs is, from fits without each.

    The variance is that of a normal distribution whose prior is the shipped band
    (scaled inverse chi-squared; Gelman et al. 2013, Bayesian Data Analysis, section 2.6).
    """
    squares = float((left_out**2).sum())
    return math.sqrt((PRIOR_RUNS * shipped_error**2 + squares) / (PRIOR_RUNS + len(left_out))) / shipped_error


def prior_spread(generations: Sequence[GpuEfficiency]) -> float:
    """Return how far a site may lie from what ships, as one standard deviation of a fraction's logarithm.

    It is what lies between the generations where they differ most: a site is
    taken to differ from the published runs as much as those do among each other.
    """
    return max(pstdev(math.log(getattr(gpu, name)) for gpu in generations) for name in FRACTIONS)


def run_error(stack: StackEfficiency, coverage: float) -> float:
    """Return one standard deviation of ln(measured/estimate) of a stack's runs, from its shipped band."""
    quantile = NormalDist().inv_cdf((1 + coverage) / 2)
    return math.log(stack.high / stack.low) / (2 * quantile)


def _with_fractions(gpu: GpuEfficiency, fractions: Mapping[str, float]) -> GpuEfficiency:
    changes: dict[str, Any] = dict(fractions)
    return replace(gpu, **changes)


def _refuse_absurd(observation: Observation, shipped: GpuEfficiency) -> None:
    estimate = observation.estimate(shipped)
    times = observation.measured_seconds / estimate
    if not 1 / MOST_FROM_ESTIMATE <= times <= MOST_FROM_ESTIMATE:
        raise InvalidQuestion(
            f"{observation.what} took {duration(observation.measured_seconds)}, {figure(times, 2)} times the estimate "
            f"of {duration(estimate)}. Check the unit, and that the layout is the one that ran.",
            pointer=observation.pointer,
        )
    if observation.kind == "run":
        return
    ideal = observation.estimate(_with_fractions(shipped, dict.fromkeys(FRACTIONS, 1.0)))
    if observation.measured_seconds < ideal:
        raise InvalidQuestion(
            f"{observation.what} took {duration(observation.measured_seconds)}, less than the {duration(ideal)} that "
            "the datasheet's rate allows.",
            pointer=observation.pointer,
        )


def _repeats(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Return the observations by what they measured; raise where repeats contradict each other."""
    groups: dict[str, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(observation.what, []).append(observation)
    for group in groups.values():
        first = group[0]
        for other in group[1:]:
            times = other.measured_seconds / first.measured_seconds
            if max(times, 1 / times) > MOST_BETWEEN_REPEATS:
                raise InvalidQuestion(
                    f"{other.what} took {duration(other.measured_seconds)} here and "
                    f"{duration(first.measured_seconds)} at {first.pointer}: one of the two was disturbed.",
                    pointer=other.pointer,
                )
    return list(groups.values())


class _Fit:
    """The least squares of one set of measurements; a group of repeats counts once, by its geometric mean."""

    def __init__(self, groups: Sequence[Sequence[Observation]], shipped: GpuEfficiency) -> None:
        self._groups, self._shipped = groups, shipped
        self._common = load_efficiency().common
        self._logs = np.array([np.mean([math.log(each.measured_seconds) for each in group]) for group in groups])
        self._errors = np.array([self._error_of(group[0]) for group in groups])
        self._prior = prior_spread(shipped_generations())
        # A fraction is at most 1.
        self._ceiling = np.array([-math.log(getattr(shipped, name)) for name in FRACTIONS])
        self._solve()

    def _error_of(self, observation: Observation) -> float:
        if not observation.stack:
            return MICROBENCHMARK_ERROR
        return run_error(load_efficiency(observation.stack).stack, self._common.coverage)

    def _gpu(self, offsets: FloatArray) -> GpuEfficiency:
        values = {
            name: getattr(self._shipped, name) * math.exp(offset)
            for name, offset in zip(FRACTIONS, offsets.tolist(), strict=True)
            if offset
        }
        return _with_fractions(self._shipped, values)

    def residuals(self, offsets: FloatArray) -> FloatArray:
        """Return ln(measured/estimate) of each group."""
        gpu = self._gpu(offsets)
        return self._logs - np.log([group[0].estimate(gpu) for group in self._groups])

    def _solve(self) -> None:
        """Fit; a fraction that would exceed 1 stays there."""
        found = ridge(self.residuals, errors=self._errors, spread=self._prior, ceiling=self._ceiling)
        self.offsets, self.residual, self.left_out = found.offsets, found.residual, found.left_out
        self._resolution, self._unknown = found.resolution, found.unknown

    def fractions(self) -> tuple[FittedFraction, ...]:
        """Return every fraction before and after."""
        fitted = self._gpu(self.offsets)
        return tuple(
            FittedFraction(
                name=name,
                shipped=getattr(self._shipped, name),
                fitted=getattr(fitted, name),
                resolution=float(self._resolution[place]),
                is_identifiable=bool(self._resolution[place] >= LEAST_RESOLUTION),
                relative_error=float(self._unknown[place]),
            )
            for place, name in enumerate(FRACTIONS)
        )

    def checked(self) -> tuple[CheckedObservation, ...]:
        """Return every group of repeats beside its estimates."""
        before = self.residuals(np.zeros(len(FRACTIONS)))
        rows = zip(self._groups, self._logs, before, self.residual, self.left_out, strict=True)
        return tuple(
            CheckedObservation(
                pointers=tuple(each.pointer for each in group),
                what=group[0].what,
                kind=group[0].kind,
                measured_seconds=math.exp(measured),
                shipped_seconds=math.exp(measured - shipped),
                fitted_seconds=math.exp(measured - fitted),
                left_out_seconds=math.exp(measured - left_out),
            )
            for group, measured, shipped, fitted, left_out in rows
        )

    def bands(self) -> tuple[StackBand, ...]:
        """Return each measured stack's band, from its shipped one and the errors of fits without each run."""
        stacks = [group[0].stack for group in self._groups]
        found = []
        for name in sorted({stack for stack in stacks if stack}):
            own = np.array([name == stack for stack in stacks])
            stack = load_efficiency(name).stack
            shipped = run_error(stack, self._common.coverage)
            spread = band_spread(self.left_out[own], shipped)
            found.append(
                StackBand(
                    stack=name, runs=int(own.sum()), spread=spread, low=stack.low**spread, high=stack.high**spread
                )
            )
        return tuple(found)
