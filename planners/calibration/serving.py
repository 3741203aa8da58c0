"""What a site's own deployments took, fitted as one factor for each group of an engine's terms.

Logarithms of measured over estimated times are fitted by logarithms of the factors of
`efficiency.py` with `planners/calibration/ridge.py`, engine by engine. A measurement weighs as much
as models held out of the shipped fit miss, and a factor is held to 1 as firmly: a site is
taken to differ from the public runs as those differ from what is fitted to the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from plimsoll.planners.calibration.ridge import FloatArray, Ridge, ridge
from plimsoll.planners.calibration.training import (
    LEAST_RESOLUTION,
    MOST_FROM_ESTIMATE,
    CheckedObservation,
    FitError,
    FittedFraction,
    band_spread,
    fit_error,
)
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.figures import duration, figure
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.search.search import search_fleet
from plimsoll.planners.serving.times.batching import Deployment, SteadyState
from plimsoll.planners.serving.times.efficiency import FACTORS, Band, Efficiency, efficiency, scaled

# Bands hold nine of ten measured values.
BAND_COVERAGE = 0.90
TOKEN, FIRST_TOKEN = "token", "first_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredServing:
    """Mean times of one deployment under one load, None where not measured; `engine` is what its speed is known as."""

    pointer: str
    what: str
    engine: str
    deployment: Deployment
    concurrency: int
    token_seconds: float | None
    first_token_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalibration:
    """One engine's factors before (1) and after, and how well they explain its deployments."""

    engine: str
    factors: tuple[FittedFraction, ...]
    observations: tuple[CheckedObservation, ...]
    error_shipped: FitError
    error_fitted: FitError
    error_left_out: FitError
    token_spread: float
    first_token_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Time:
    """One measured time of a deployment."""

    run: MeasuredServing
    kind: str
    measured_seconds: float

    def estimate(self, state: SteadyState) -> float:
        """Return the estimate of the same time."""
        return state.tpot_seconds if self.kind == TOKEN else state.ttft_seconds

    @property
    def pointer(self) -> str:
        """Return where in the request it stands."""
        return f"{self.run.pointer}/{'tpot_seconds' if self.kind == TOKEN else 'ttft_seconds'}"

    @property
    def what(self) -> str:
        """Return what was measured in words."""
        return f"{'A token' if self.kind == TOKEN else 'The first token'} of {self.run.what}"


def measured_serving(
    question: ServingQuestion, *, pointer: str, token_seconds: float | None, first_token_seconds: float | None
) -> MeasuredServing:
    """Return a measured deployment with what the planner makes of it.

    Raises `InvalidQuestion` where no load is stated or the deployment holds no request,
    and `NotYetAvailable` where the engine's speed is not described.
    """
    if question.concurrency is None or question.input_tokens is None or question.output_tokens is None:
        raise InvalidQuestion("A measured deployment needs concurrency, input_tokens and output_tokens.", pointer="")
    best = search_fleet((question,)).candidates[0]
    engine = best.settings.profile.timed_as
    if engine is None:
        raise NotYetAvailable(f"The speed of {best.settings.profile.engine} cannot be predicted yet.", pointer="")
    if best.deployment is None:
        raise InvalidQuestion("The deployment is planned to hold not one request; it cannot have run.", pointer="")
    degrees = best.replica.degrees
    load = f"{question.concurrency} clients, {question.input_tokens} tokens in and {question.output_tokens} out"
    what = f"{question.model.name} on {best.gpus} GPUs (tensor parallel {degrees.tensor_parallel}), {load}"
    return MeasuredServing(
        pointer=pointer,
        what=what,
        engine=engine,
        deployment=best.deployment,
        concurrency=question.concurrency,
        token_seconds=token_seconds,
        first_token_seconds=first_token_seconds,
    )


def calibrate_serving(runs: Sequence[MeasuredServing]) -> tuple[EngineCalibration, ...]:
    """Return each measured engine's factors; raises `InvalidQuestion` at a measurement that is absurd."""
    return tuple(
        _calibrated(engine, [time for run in runs if run.engine == engine for time in _times(run)])
        for engine in sorted({run.engine for run in runs})
    )


def _times(run: MeasuredServing) -> list[_Time]:
    measured = ((TOKEN, run.token_seconds), (FIRST_TOKEN, run.first_token_seconds))
    return [_Time(run=run, kind=kind, measured_seconds=seconds) for kind, seconds in measured if seconds is not None]


def _calibrated(engine: str, times: Sequence[_Time]) -> EngineCalibration:
    shipped = efficiency(engine)
    logs = np.log([time.measured_seconds for time in times])

    def residuals(offsets: FloatArray) -> FloatArray:
        factors = {name: math.exp(offset) for name, offset in zip(FACTORS, offsets.tolist(), strict=True)}
        return np.asarray(logs - np.log(_estimates(times, scaled(shipped, factors))))

    before = residuals(np.zeros(len(FACTORS)))
    _refuse_absurd(times, before)
    errors = {TOKEN: band_error(shipped.token_band), FIRST_TOKEN: band_error(shipped.first_token_band)}
    found = ridge(
        residuals,
        errors=np.array([errors[time.kind] for time in times]),
        spread=errors[TOKEN],
        ceiling=np.full(len(FACTORS), math.log(MOST_FROM_ESTIMATE)),
    )
    spreads = {
        kind: band_spread(found.left_out[[time.kind == kind for time in times]], error)
        for kind, error in errors.items()
    }
    return EngineCalibration(
        engine=engine,
        factors=_factors(found),
        observations=_checked(times, logs, before, found),
        error_shipped=fit_error(before),
        error_fitted=fit_error(found.residual),
        error_left_out=fit_error(found.left_out),
        token_spread=spreads[TOKEN],
        first_token_spread=spreads[FIRST_TOKEN],
    )


def band_error(band: Band) -> float:
    """Return one standard deviation of ln(measured/estimate) that a band stands for."""
    return math.log(band.high / band.low) / (2 * NormalDist().inv_cdf((1 + BAND_COVERAGE) / 2))


def _estimates(times: Sequence[_Time], fitted: Efficiency) -> list[float]:
    found = []
    for time in times:
        deployment = time.run.deployment
        measured = replace(deployment, work=replace(deployment.work, efficiency=fitted))
        found.append(time.estimate(measured.at(time.run.concurrency)))
    return found


def _refuse_absurd(times: Sequence[_Time], residual: FloatArray) -> None:
    for time, ratio in zip(times, np.exp(residual).tolist(), strict=True):
        if not 1 / MOST_FROM_ESTIMATE <= ratio <= MOST_FROM_ESTIMATE:
            raise InvalidQuestion(
                f"{time.what} took {duration(time.measured_seconds)}, {figure(ratio, 2)} times the estimate. Check "
                "the unit, and that layout and load are those that ran.",
                pointer=time.pointer,
            )


def _factors(found: Ridge) -> tuple[FittedFraction, ...]:
    return tuple(
        FittedFraction(
            name=name,
            shipped=1.0,
            fitted=math.exp(found.offsets[place]),
            resolution=float(found.resolution[place]),
            is_identifiable=bool(found.resolution[place] >= LEAST_RESOLUTION),
            relative_error=float(found.unknown[place]),
        )
        for place, name in enumerate(FACTORS)
    )


def _checked(
    times: Sequence[_Time], logs: FloatArray, before: FloatArray, found: Ridge
) -> tuple[CheckedObservation, ...]:
    return tuple(
        CheckedObservation(
            pointers=(time.pointer,),
            what=time.what,
            kind=time.kind,
            measured_seconds=time.measured_seconds,
            shipped_seconds=math.exp(logs[place] - before[place]),
            fitted_seconds=math.exp(logs[place] - found.residual[place]),
            left_out_seconds=math.exp(logs[place] - found.left_out[place]),
        )
        for place, time in enumerate(times)
    )
