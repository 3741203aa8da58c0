"""Reports of speed on record, as what a calibration fits: runs of stored plans with their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.service.calibrations.report import UnusedMeasurement
from plimsoll.service.measurements.service import SPEED_LEVEL
from plimsoll.service.persistence.paging import LARGEST_PAGE
from plimsoll.service.persistence.records import Measurement, StoredPlan
from plimsoll.service.requests.calibration import CalibrationRun, CalibrationServing

if TYPE_CHECKING:
    # For its name alone: clients read the answers of these modules, and need no SQLAlchemy.
    from plimsoll.service.persistence.database import Database

Found = TypeVar("Found")

FROM_RECORD = "/from_record"
SERVING_TIMES = ("tpot_seconds", "ttft_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunToFit:
    """One measured run: where it stands in the request, the plan that it names, its number where it is on record."""

    pointer: str
    run: CalibrationRun | CalibrationServing
    plan: StoredPlan | None
    measurement_id: int | None = None


async def recorded_runs(database: Database, gpu: str) -> tuple[list[RunToFit], list[UnusedMeasurement]]:
    """Return the newest page of speeds reported of a GPU's plans, and those that hold nothing to fit.

    Raises InvalidQuestion where none is on record.
    """
    page = await database.measurements.page(level=SPEED_LEVEL, gpu=gpu, limit=LARGEST_PAGE)
    if not page.items:
        raise InvalidQuestion(
            f"No speed of {gpu} is on record; report runs of stored plans with POST /measurements.", pointer=FROM_RECORD
        )
    runs, unused = [], []
    for record in page.items:
        plan = None if record.plan_id is None else await database.plans.get(record.plan_id)
        run = None if plan is None else _run_of(plan, record)
        if run is None:
            why = "It names no plan." if plan is None else "Its plan is fitted by other times than it holds."
            unused.append(UnusedMeasurement(measurement_id=record.id, reason=why))
        else:
            pointer = f"{FROM_RECORD}/{record.id}"
            runs.append(RunToFit(pointer=pointer, run=run, plan=plan, measurement_id=record.id))
    return runs, unused


def found_or_unused(run: RunToFit, find: Callable[[], Found]) -> Found | UnusedMeasurement:
    """Return what is found of a run, or why one on record cannot be used; one that was sent raises instead."""
    try:
        return find()
    except PlimsollError as error:
        if run.measurement_id is None:
            raise
        return UnusedMeasurement(measurement_id=run.measurement_id, reason=error.detail)


def _run_of(plan: StoredPlan, record: Measurement) -> CalibrationRun | CalibrationServing | None:
    measured = record.measured
    if plan.kind == "infer":
        times = {name: measured[name] for name in SERVING_TIMES if measured.get(name)}
        return CalibrationServing(plan_id=plan.plan_id, **times) if times else None
    # Both say the same of a run; the step is what is fitted.
    name = next((name for name in ("step_seconds", "tokens_per_second") if measured.get(name)), None)
    return None if name is None else CalibrationRun(plan_id=plan.plan_id, **{name: measured[name]})
