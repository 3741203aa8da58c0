"""Reports from real runs: stored, and set beside what was predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from planners.catalogue import Catalogue
from planners.errors import InvalidQuestion, UnknownGpu, UnknownModel
from service.persistence.database import Database
from service.persistence.records import NewMeasurement, StoredPlan
from service.requests.measurements import MeasurementRequest

# Sizes and speeds are kept as records of their own, because their errors have
# nothing to do with each other; the first that was measured stands for its record.
LEVELS: Mapping[str, tuple[str, ...]] = {
    "run": ("peak_bytes", "reserved_bytes", "allocated_bytes", "kv_available_bytes", "kv_tokens"),
    "run-speed": ("step_seconds", "tokens_per_second", "tpot_seconds", "ttft_seconds", "output_tokens_per_second"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity; `relative_error` is predicted/measured − 1, and null where nothing was predicted."""

    quantity: str
    predicted: float | None
    measured: float
    relative_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementReport:
    """What was stored: one record for sizes and one for speeds, where any were measured."""

    measurement_ids: tuple[int, ...]
    plan_id: str | None
    comparisons: tuple[Comparison, ...]


class MeasuringService:
    """Takes reports."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    async def report(self, request: MeasurementRequest) -> MeasurementReport:
        """Store a report; raises PlanNotFound, and InvalidQuestion where it cannot be of that plan."""
        request = self._by_id(request)
        plan = None if request.plan_id is None else await self._database.plans.get(request.plan_id)
        _refuse_another_run(request, plan)
        predicted = {} if plan is None else predictions(plan)
        measured = request.quantities()
        for quantity in measured:
            if plan is not None and predicted.get(quantity) is None:
                raise InvalidQuestion(f"The plan predicts no {quantity}.", pointer=f"/{quantity}")
        comparisons = tuple(_comparison(quantity, predicted.get(quantity), measured[quantity]) for quantity in measured)
        records = [await self._database.measurements.add(record) for record in _records(request, plan, comparisons)]
        return MeasurementReport(
            measurement_ids=tuple(record.id for record in records), plan_id=request.plan_id, comparisons=comparisons
        )

    def _by_id(self, request: MeasurementRequest) -> MeasurementRequest:
        """Return the report with the catalogue's ids for aliases, so that one GPU's runs stand together."""
        named: dict[str, str] = {}
        if request.gpu is not None:
            with suppress(UnknownGpu):  # One given by hand goes by its own name, as in plans.
                named["gpu"] = self._catalogue.gpu(request.gpu).id
        if request.model is not None:
            with suppress(UnknownModel):
                named["model"] = self._catalogue.model(request.model).id
        return request.model_copy(update=named)


def predictions(plan: StoredPlan) -> dict[str, float | None]:
    """Return what a stored plan predicts, under the names in which runs are reported."""
    planned = json.loads(plan.answer)["plan"]
    memory = planned["memory"]
    if plan.kind == "train":
        return {
            "peak_bytes": memory["peak_bytes"],
            "allocated_bytes": memory["allocated_bytes"],
            "reserved_bytes": memory["reserved_bytes"],
            "step_seconds": planned["step"]["seconds"],
            "tokens_per_second": planned["step"]["tokens_per_second"],
        }
    performance: Mapping[str, Any] = planned["performance"] or {}
    return {
        "peak_bytes": memory["peak_bytes"],
        "kv_available_bytes": planned["kv"]["available_bytes"],
        "kv_tokens": planned["kv"]["tokens"],
        **{name: performance.get(name) for name in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")},
    }


def _refuse_another_run(request: MeasurementRequest, plan: StoredPlan | None) -> None:
    if plan is None:
        return
    for field in ("framework", "gpu", "model"):
        given, planned = getattr(request, field), getattr(plan, field)
        if given is not None and given != planned:
            raise InvalidQuestion(
                f"The plan is for {planned!r}, not for {given[:100]!r}; report another run without plan_id.",
                pointer=f"/{field}",
            )


def _comparison(quantity: str, predicted: float | None, measured: float) -> Comparison:
    error = None if predicted is None else predicted / measured - 1
    return Comparison(quantity=quantity, predicted=predicted, measured=measured, relative_error=error)


def _records(
    request: MeasurementRequest, plan: StoredPlan | None, comparisons: tuple[Comparison, ...]
) -> list[NewMeasurement]:
    by_quantity = {comparison.quantity: comparison for comparison in comparisons}
    records = []
    for level, quantities in LEVELS.items():
        found = [by_quantity[quantity] for quantity in quantities if quantity in by_quantity]
        if found:
            records.append(
                NewMeasurement(
                    plan_id=request.plan_id,
                    level=level,
                    framework=plan.framework if plan else request.framework or "",
                    gpu=plan.gpu if plan else request.gpu or "",
                    model=plan.model if plan else request.model or "",
                    predicted={each.quantity: each.predicted for each in found if each.predicted is not None},
                    measured={each.quantity: each.measured for each in found},
                    relative_error=found[0].relative_error,
                    source=request.source,
                )
            )
    return records
