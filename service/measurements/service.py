"""Reports from real runs: stored, set beside what was predicted, and learned from where a serving engine started."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownGpu, UnknownModel
from plimsoll.planners.learned import Learned
from plimsoll.planners.serving.lessons import lesson
from plimsoll.planners.serving.startup_log import StartupLog, read_startup_log
from plimsoll.service.access.rate_limits import StorageLimits
from plimsoll.service.catalogue.gpus import gpu_figures
from plimsoll.service.ground.canonical import canonical_json
from plimsoll.service.measurements.start_comparison import (
    logged_quantities,
    measured_start,
    plan_gpu,
    planned_start,
    refuse_another_start,
    serving_predictions,
)
from plimsoll.service.measurements.start_question import question_of_log
from plimsoll.service.persistence.records import LearnedKey, LearnedStart, Measurement, NewMeasurement, StoredPlan
from plimsoll.service.plans.learned_starts import MEASURED_FIGURES, LearningService, model_digest
from plimsoll.service.plans.service import PlannedAnswer
from plimsoll.service.plans.stored_bodies import plan_body
from plimsoll.service.requests.measurements import MeasurementRequest
from plimsoll.service.requests.serving import InferRequest

if TYPE_CHECKING:
    # For its name alone: clients read the answers of this module, and need no SQLAlchemy.
    from plimsoll.service.persistence.database import Database

# Sizes and speeds are kept as records of their own, because their errors have
# nothing to do with each other; the first that was measured stands for its record.
SPEED_LEVEL = "run-speed"
# Of what the catalogue says: drivers report up to 0.5 % more or less, and datasheets round.
MOST_OF_A_CARD = 1.05
SPEED_FACTORS = ("ttft_factor", "tpot_factor")
LEVELS: Mapping[str, tuple[str, ...]] = {
    "run": (
        "peak_bytes", "reserved_bytes", "allocated_bytes", "kv_available_bytes", "kv_tokens", "kv_blocks",
        "kv_max_concurrency", "weights_bytes", "activations_bytes", "runtime_bytes", "cuda_graphs_bytes",
    ),
    SPEED_LEVEL: ("step_seconds", "tokens_per_second", "tpot_seconds", "ttft_seconds", "output_tokens_per_second"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedQuantity:
    """One quantity; `relative_error` is predicted/measured − 1, and null where nothing was predicted."""

    quantity: str
    predicted: float | None
    measured: float
    relative_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementReport:
    """What was stored: one record for sizes and one for speeds, where any were measured.

    `log` is what was read of a start-up log. `learned` is what later plans of the
    same model, GPU, engine version and weights rest on from now on; where a serving
    run teaches nothing, `not_learned` says why.
    """

    measurement_ids: tuple[int, ...]
    plan_id: str | None
    comparisons: tuple[ComparedQuantity, ...]
    log: StartupLog | None = None
    learned: Learned | None = None
    not_learned: str | None = None


class PlanServing(Protocol):
    """Plans what a start-up log tells of."""

    async def __call__(self, request: InferRequest, *, asked_by: str = "") -> PlannedAnswer:
        """Return the plan; its search is of the share of `asked_by`."""


class MeasuringService:
    """Takes reports."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        learning: LearningService,
        plan_serving: PlanServing,
        storage: StorageLimits,
    ) -> None:
        """Take reports into a database; what each stores is counted in `storage`."""
        self._storage = storage
        self._database = database
        self._catalogue = catalogue
        self._learning = learning
        self._plan_serving = plan_serving

    async def report(self, request: MeasurementRequest, *, asked_by: str = "") -> MeasurementReport:
        """Store a report; raises PlanNotFound, StorageLimitReached, and InvalidQuestion if it cannot be of that plan.

        Where a plan is made for it, the search is of the share of `asked_by`.
        """
        self._storage.check(asked_by)
        request = self._by_id(request)
        log = None if request.log is None else await asyncio.to_thread(read_startup_log, request.log)
        if log is not None and request.plan_id is None:
            asked = question_of_log(log, request)
            planned = await self._plan_serving(asked, asked_by=asked_by)
            request = request.model_copy(update={"plan_id": planned.plan_id})
        plan = None if request.plan_id is None else await self._database.plans.get(request.plan_id)
        _refuse_another_run(request, plan)
        measured = request.quantities()
        if log is not None and plan is not None:
            refuse_another_start(log, plan)
            measured = _with_logged(measured, logged_quantities(log))
        if plan is not None:
            _refuse_more_than_the_card(measured, plan)
        predicted = {} if plan is None else predictions(plan)
        for quantity in measured:
            if plan is not None and predicted.get(quantity) is None:
                raise InvalidQuestion(f"The plan predicts no {quantity}.", pointer=f"/{quantity}")
        comparisons = tuple(_comparison(quantity, predicted.get(quantity), measured[quantity]) for quantity in measured)
        made = _records(request, plan, comparisons)
        records = [await self._database.measurements.add(record) for record in made]
        self._storage.note(asked_by, sum(len(canonical_json(dataclasses.asdict(record))) for record in made))
        numbers = tuple(record.id for record in records)
        learned, obstacle = await self._learned(plan, measured, request.source, records)
        return MeasurementReport(
            measurement_ids=numbers,
            plan_id=request.plan_id,
            comparisons=comparisons,
            log=log,
            learned=learned,
            not_learned=obstacle,
        )

    async def forget(self, measurement_id: int) -> None:
        """Delete a measurement and what it taught; raises MeasurementNotFound."""
        await self._learning.forget(measurement_id)

    async def _learned(
        self, plan: StoredPlan | None, measured: Mapping[str, int | float], source: str, records: Sequence[Measurement]
    ) -> tuple[Learned | None, str | None]:
        """Return what a serving run taught, or why it taught nothing; neither for a training run."""
        if plan is None or plan.kind != "infer" or plan.model_config is None:
            return None, None
        if not self._is_the_catalogues_card(plan):
            return None, f"The plan's {plan.gpu} has other figures than the catalogue's."
        taught = lesson(planned_start(plan), measured_start(plan.framework, measured))
        if taught.obstacle is not None:
            return None, taught.obstacle
        settings = plan_body(plan)["plan"]["settings"]
        key = LearnedKey(
            model_digest=model_digest(plan.model_config),
            gpu=plan.gpu,
            engine=settings["engine"],
            engine_version=settings["engine_version"],
            weights=settings["weights"],
        )
        which = f"measurement {', '.join(str(record.id) for record in records)}"
        provenance = (
            f"{which} by {source}, {plan.model} in {key.weights} on {plan.gpu}, {key.engine} {key.engine_version}"
        )
        start = LearnedStart(key=key, learned=dict(taught.values), provenance=provenance)
        return await self._learning.learn(start, _by_measurement(taught.values, records)), None

    def _is_the_catalogues_card(self, plan: StoredPlan) -> bool:
        figures = plan_gpu(plan)
        try:
            listed = gpu_figures(self._catalogue.gpu(plan.gpu))
        except UnknownGpu:
            return False
        return all(figures[name] == listed[name] for name in MEASURED_FIGURES)

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


def _by_measurement(values: Mapping[str, float], records: Sequence[Measurement]) -> dict[int, dict[str, float]]:
    """Return which of the values each record taught: speeds those of speeds, sizes the others."""
    of_speeds = {name: value for name, value in values.items() if name in SPEED_FACTORS}
    of_sizes = {name: value for name, value in values.items() if name not in SPEED_FACTORS}
    return {record.id: of_speeds if record.level == SPEED_LEVEL else of_sizes for record in records}


def predictions(plan: StoredPlan) -> dict[str, float | None]:
    """Return what a stored plan predicts, under the names in which runs are reported."""
    planned = plan_body(plan)["plan"]
    memory = planned["memory"]
    if plan.kind == "train":
        return {
            "peak_bytes": memory["peak_bytes"],
            "allocated_bytes": memory["allocated_bytes"],
            "reserved_bytes": memory["reserved_bytes"],
            "step_seconds": planned["step"]["seconds"],
            "tokens_per_second": planned["step"]["tokens_per_second"],
        }
    return serving_predictions(planned)


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


def _refuse_more_than_the_card(measured: Mapping[str, int | float], plan: StoredPlan) -> None:
    memory_bytes = plan_gpu(plan)["memory_bytes"]
    for quantity, number in measured.items():
        if quantity.endswith("_bytes") and number > MOST_OF_A_CARD * memory_bytes:
            raise InvalidQuestion(
                f"{quantity} is what one GPU used, and {number:,} bytes are more than the {memory_bytes:,} of "
                f"{plan.gpu}. Check the unit.",
                pointer=f"/{quantity}",
            )


def _with_logged(given: dict[str, int | float], logged: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return figures given beside a log together with the log's; raise where one stands in both."""
    for quantity in given:
        if quantity in logged:
            raise InvalidQuestion(f"The log says {quantity} already; give it once.", pointer=f"/{quantity}")
    return {**given, **logged}


def _comparison(quantity: str, predicted: float | None, measured: float) -> ComparedQuantity:
    error = None if predicted is None else predicted / measured - 1
    return ComparedQuantity(quantity=quantity, predicted=predicted, measured=measured, relative_error=error)


def _records(
    request: MeasurementRequest, plan: StoredPlan | None, comparisons: tuple[ComparedQuantity, ...]
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
