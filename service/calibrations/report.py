"""The report of a calibration, and its stored form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll.planners.calibration.serving import EngineCalibration
from plimsoll.planners.calibration.training import Calibration, CheckedObservation, FitError, FittedFraction, StackBand
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.service.persistence.records import Calibration as StoredCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakCheck:
    """A measured peak beside the planner's, which is derived and not fitted.

    `relative_error` is predicted/measured - 1.
    """

    pointer: str
    measured_bytes: int
    predicted_bytes: int
    relative_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedMeasurement:
    """A measurement on record that was not fitted, and why."""

    measurement_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordUse:
    """Which measurements on record were fitted, by their numbers, and which could not be."""

    used: tuple[int, ...]
    unused: tuple[UnusedMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """A GPU's calibration: what was fitted from what, and how well.

    `fractions` are parts of the datasheet's rates. `observations` compares every
    measurement with the shipped estimate, the fitted one, and that of a fit without
    it, and the three errors sum them up: 0 where nothing of training was measured, as each engine under `serving` has
    its own. `bands` is what a step's time may be times
    its estimate, for each stack with measured runs. `record` is null unless the
    record was asked for.
    """

    gpu: str
    revision: str
    created_at: datetime | None
    fractions: tuple[FittedFraction, ...]
    observations: tuple[CheckedObservation, ...]
    error_shipped: FitError
    error_fitted: FitError
    error_left_out: FitError
    bands: tuple[StackBand, ...]
    peaks: tuple[PeakCheck, ...]
    serving: tuple[EngineCalibration, ...]
    method: str
    record: RecordUse | None


METHOD = (
    "Ridge regression of logarithms of times on logarithms of the fractions, shrunk towards the shipped figures; "
    "a fraction whose resolution is below a half is decided by what ships."
)


def calibration_report(
    gpu: Gpu,
    revision: str,
    fit: Calibration,
    peaks: tuple[PeakCheck, ...],
    engines: tuple[EngineCalibration, ...],
    record: RecordUse | None,
) -> CalibrationReport:
    """Return the report of a fit that is not stored yet."""
    return CalibrationReport(
        gpu=gpu.id,
        revision=revision,
        created_at=None,
        fractions=fit.fractions,
        observations=fit.observations,
        error_shipped=fit.error_shipped,
        error_fitted=fit.error_fitted,
        error_left_out=fit.error_left_out,
        bands=fit.bands,
        peaks=peaks,
        serving=engines,
        method=METHOD,
        record=record,
    )


def report_as_json(report: CalibrationReport) -> dict[str, Any]:
    """Return what is stored of a report; id, revision and time have columns of their own."""
    body: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(report), allow_nan=False))
    return {name: value for name, value in body.items() if name not in ("gpu", "revision", "created_at")}


def stored_report(stored: StoredCalibration) -> CalibrationReport:
    """Return the report of a stored calibration."""
    body = stored.report
    return CalibrationReport(
        gpu=stored.gpu,
        revision=stored.revision,
        created_at=stored.created_at,
        fractions=tuple(FittedFraction(**each) for each in body["fractions"]),
        observations=_observations(body),
        error_shipped=FitError(**body["error_shipped"]),
        error_fitted=FitError(**body["error_fitted"]),
        error_left_out=FitError(**body["error_left_out"]),
        bands=tuple(StackBand(**each) for each in body["bands"]),
        peaks=tuple(PeakCheck(**each) for each in body["peaks"]),
        serving=tuple(_engine(each) for each in body.get("serving", ())),
        method=body["method"],
        record=_record_use(body.get("record")),
    )


def _record_use(body: Mapping[str, Any] | None) -> RecordUse | None:
    if body is None:
        return None
    unused = tuple(UnusedMeasurement(**each) for each in body["unused"])
    return RecordUse(used=tuple(body["used"]), unused=unused)


def _observations(body: Mapping[str, Any]) -> tuple[CheckedObservation, ...]:
    return tuple(CheckedObservation(**{**each, "pointers": tuple(each["pointers"])}) for each in body["observations"])


def _engine(body: Mapping[str, Any]) -> EngineCalibration:
    return EngineCalibration(
        engine=body["engine"],
        factors=tuple(FittedFraction(**each) for each in body["factors"]),
        observations=_observations(body),
        error_shipped=FitError(**body["error_shipped"]),
        error_fitted=FitError(**body["error_fitted"]),
        error_left_out=FitError(**body["error_left_out"]),
        token_spread=body["token_spread"],
        first_token_spread=body["first_token_spread"],
    )
