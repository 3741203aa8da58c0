"""A site's own efficiencies: fitted from its measurements, stored, and handed to later plans."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from planners.calibration import (
    Calibration,
    CheckedObservation,
    FitError,
    FittedFraction,
    Observation,
    StackBand,
    calibrate,
)
from planners.catalogue import Catalogue
from planners.errors import InvalidQuestion, PlimsollError
from planners.hardware import Gpu, GpuCount, Hardware, SiteEfficiency, SiteServing
from planners.huggingface import describe_config
from planners.measured_runs import MeasuredRun, observed_run
from planners.plans import Layout
from planners.questions import LayoutRequest, TrainingQuestion
from planners.serving.calibration import EngineCalibration, calibrate_serving
from planners.timing.efficiency import load_efficiency
from planners.timing.microbenchmarks import (
    attention_seconds,
    matmul_seconds,
    memory_seconds,
    one_all_reduce_seconds,
)
from planners.training import plan_training
from service.canonical import digest
from service.errors import CalibrationNotFound
from service.models import ModelResolver
from service.persistence.records import Calibration as StoredCalibration
from service.persistence.records import StoredPlan
from service.requests.calibration import (
    AllReduceBenchmark,
    AttentionBenchmark,
    CalibrationRequest,
    CalibrationRun,
    MatmulBenchmark,
    MeasuredJob,
    MemoryBenchmark,
    Microbenchmark,
)
from service.requests.training import TrainingPart, training_fields
from service.serving_calibrating import measured_deployments, site_serving

if TYPE_CHECKING:
    # For its name alone: clients read the answers of this module, and need no SQLAlchemy.
    from service.persistence.database import Database

# Another replica's calibration is in force here after this long at the latest.
KNOWN_FOR_SECONDS = 2.0
# Rates alone are measured of kernels: the operations and bytes that stand for them cancel out.
UNIT_FLOPS = 1e12
UNIT_BYTES = 1e9


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
class CalibrationReport:
    """A GPU's calibration: what was fitted from what, and how well.

    `fractions` are parts of the datasheet's rates. `observations` compares every
    measurement with the shipped estimate, the fitted one, and that of a fit without
    it, and the three errors sum them up. `bands` is what a step's time may be times
    its estimate, for each stack with measured runs.
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


METHOD = (
    "Ridge regression of logarithms of times on logarithms of the fractions, shrunk towards the shipped figures; "
    "a fraction whose resolution is below a half is decided by what ships."
)


class CalibrationService:
    """Fits, keeps and hands out calibrations; the latest of a GPU is in force."""

    def __init__(self, database: Database, catalogue: Catalogue, models: ModelResolver) -> None:
        self._database = database
        self._catalogue = catalogue
        self._models = models
        self._known: dict[str, SiteEfficiency] = {}
        self._known_until = 0.0

    async def calibrate(self, gpu: Gpu, request: CalibrationRequest) -> CalibrationReport:
        """Fit and store a GPU's efficiencies; raises PlanNotFound, and InvalidQuestion at what cannot be."""
        stored = {
            number: await self._database.plans.get(run.plan_id)
            for number, run in enumerate(request.measurements)
            if run.plan_id is not None
        }
        served = {
            number: await self._database.plans.get(run.plan_id)
            for number, run in enumerate(request.serving)
            if run.plan_id is not None
        }
        report, site = await asyncio.to_thread(self._fit, gpu, request, stored, served)
        await self._database.calibrations.put(
            StoredCalibration(
                gpu=gpu.id,
                revision=site.revision,
                efficiencies={
                    "fractions": dict(site.fractions),
                    "spread": dict(site.spread),
                    "serving": {engine: dataclasses.asdict(found) for engine, found in site.serving.items()},
                },
                report=_as_json(report),
            )
        )
        self._known_until = 0.0
        return await self.report(gpu)

    async def report(self, gpu: Gpu) -> CalibrationReport:
        """Return the calibration in force; raises CalibrationNotFound."""
        found = await self._database.calibrations.find(gpu.id)
        if found is None:
            raise CalibrationNotFound(gpu.id)
        return _from_json(found)

    async def remove(self, gpu: Gpu) -> None:
        """Forget every calibration of a GPU, so that what ships holds again; raises CalibrationNotFound."""
        if not await self._database.calibrations.delete(gpu.id):
            raise CalibrationNotFound(gpu.id)
        self._known_until = 0.0

    async def in_force(self) -> Mapping[str, SiteEfficiency]:
        """Return every GPU's own efficiencies by its id, as they were at most a moment ago."""
        now = time.monotonic()
        if now >= self._known_until:
            found = await self._database.calibrations.in_force()
            self._known = {gpu: _site(calibration) for gpu, calibration in found.items()}
            self._known_until = now + KNOWN_FOR_SECONDS
        return self._known

    def _fit(
        self,
        gpu: Gpu,
        request: CalibrationRequest,
        stored: Mapping[int, StoredPlan],
        served: Mapping[int, StoredPlan],
    ) -> tuple[CalibrationReport, SiteEfficiency]:
        observations: list[Observation] = []
        peaks: list[PeakCheck] = []
        for number, run in enumerate(request.measurements):
            observation, peak = self._run(gpu, run, stored.get(number), f"/measurements/{number}")
            observations.append(observation)
            peaks.extend([peak] if peak is not None else [])
        for number, benchmark in enumerate(request.microbenchmarks):
            observations.append(_benchmark(gpu, benchmark, f"/microbenchmarks/{number}"))
        fit = calibrate(observations, load_efficiency("reference", gpu.id).gpu)
        engines = calibrate_serving(measured_deployments(gpu, request.serving, served, self._models))
        serving = site_serving(engines)
        spread = {band.stack: band.spread for band in fit.bands}
        named = {engine: dataclasses.asdict(found) for engine, found in serving.items()}
        revision = digest({"gpu": gpu.id, "fractions": fit.fitted, "spread": spread, "serving": named})
        site = SiteEfficiency(
            revision=revision,
            fractions=fit.fitted,
            spread=spread,
            serving=serving,
            provenance=_provenance(gpu.id, revision),
        )
        return _report(gpu, revision, fit, tuple(peaks), engines), site

    def _run(
        self, gpu: Gpu, run: CalibrationRun, plan: StoredPlan | None, pointer: str
    ) -> tuple[Observation, PeakCheck | None]:
        try:
            if plan is not None:
                question, layout, peak_bytes = _planned_run(gpu, plan)
            else:
                question, layout, peak_bytes = self._described_run(gpu, run.run)
        except PlimsollError as error:
            error.point_by(lambda inner: f"{pointer}/plan_id" if plan is not None else f"{pointer}/run{inner}")
            raise
        tokens = question.global_batch_size * question.sequence_length
        seconds = tokens / run.tokens_per_second if run.tokens_per_second is not None else run.step_seconds
        name = "tokens_per_second" if run.step_seconds is None else "step_seconds"
        measured = MeasuredRun(
            question=question, layout=layout, step_seconds=seconds or 0.0, pointer=f"{pointer}/{name}"
        )
        if run.peak_bytes is None:
            return observed_run(measured), None
        check = PeakCheck(
            pointer=f"{pointer}/peak_bytes",
            measured_bytes=run.peak_bytes,
            predicted_bytes=peak_bytes,
            relative_error=peak_bytes / run.peak_bytes - 1,
        )
        return observed_run(measured), check

    def _described_run(self, gpu: Gpu, job: MeasuredJob | None) -> tuple[TrainingQuestion, Layout, int]:
        if job is None or job.framework == "any":
            raise InvalidQuestion("Name the framework that ran; 'any' did not.", pointer="/framework")
        question = TrainingQuestion(
            model=self._models.resolve(job.model).spec,
            hardware=Hardware(
                gpu=gpu,
                gpus=GpuCount(minimum=job.gpus, maximum=job.gpus),
                gpus_per_node=job.gpus_per_node or gpu.gpus_per_node,
            ),
            layout=LayoutRequest(**job.layout.model_dump()),
            framework=job.framework,
            **training_fields(job.training),
        )
        plan = plan_training(question).plan
        return question, plan.layout, plan.memory.peak_bytes


def _planned_run(gpu: Gpu, plan: StoredPlan) -> tuple[TrainingQuestion, Layout, int]:
    """Return the question, the layout and the peak of a stored training plan; raise InvalidQuestion for another's."""
    if plan.kind != "train" or plan.gpu != gpu.id or plan.model_config is None:
        raise InvalidQuestion(f"Plan {plan.plan_id} is no training plan of {gpu.id}; it is for {plan.gpu}.")
    answer = json.loads(plan.answer)["plan"]
    asked = plan.request["hardware"]
    hardware = next(one for one in asked.get("fleet", [asked]) if one["gpu"]["id"] == gpu.id)
    figures = hardware["gpu"]
    if figures["peak_flops_per_second"] != dict(gpu.peak_flops_per_second):
        raise InvalidQuestion(f"Plan {plan.plan_id} was made with other rates than the catalogue's {gpu.id}.")
    links = {name: figures[name] for name in ("link_bytes_per_second", "nic_bytes_per_second", "link_kind")}
    question = TrainingQuestion(
        model=describe_config(plan.model_config, name=plan.model),
        hardware=Hardware(
            gpu=dataclasses.replace(gpu, **links),
            gpus=GpuCount(minimum=plan.gpus, maximum=plan.gpus),
            gpus_per_node=hardware["gpus_per_node"],
            reserve_bytes=hardware["reserve_bytes"],
            used_bytes=hardware["used_bytes"],
        ),
        framework=plan.framework,
        **training_fields(TrainingPart.model_validate(plan.request["training"])),
    )
    return question, Layout(**answer["layout"]), answer["memory"]["peak_bytes"]


def _benchmark(gpu: Gpu, benchmark: Microbenchmark, pointer: str) -> Observation:
    hardware = Hardware(gpu=gpu, gpus=GpuCount(minimum=1, maximum=1), gpus_per_node=gpu.gpus_per_node)
    if isinstance(benchmark, MatmulBenchmark | AttentionBenchmark):
        _check_format(gpu, benchmark.format, pointer)
    if isinstance(benchmark, MatmulBenchmark):
        rows, inputs, outputs, name = benchmark.rows, benchmark.inputs, benchmark.outputs, benchmark.format
        return Observation(
            pointer=f"{pointer}/flops_per_second",
            what=f"A product of {rows} x {inputs} x {outputs} in {name}",
            kind="matmul",
            stack="",
            measured_seconds=2.0 * rows * inputs * outputs / benchmark.flops_per_second,
            estimate=lambda efficiency: matmul_seconds(rows, inputs, outputs, name, hardware, efficiency),
        )
    if isinstance(benchmark, MemoryBenchmark):
        return Observation(
            pointer=f"{pointer}/bytes_per_second",
            what="Moving a gigabyte in memory",
            kind="memory",
            stack="",
            measured_seconds=UNIT_BYTES / benchmark.bytes_per_second,
            estimate=lambda efficiency: memory_seconds(UNIT_BYTES, hardware, efficiency),
        )
    if isinstance(benchmark, AttentionBenchmark):
        number_format = benchmark.format
        return Observation(
            pointer=f"{pointer}/flops_per_second",
            what=f"10^12 operations of attention in {number_format}",
            kind="attention",
            stack="",
            measured_seconds=UNIT_FLOPS / benchmark.flops_per_second,
            estimate=lambda efficiency: attention_seconds(UNIT_FLOPS, number_format, hardware, efficiency),
        )
    return _all_reduce(hardware, benchmark, pointer)


def _all_reduce(hardware: Hardware, benchmark: AllReduceBenchmark, pointer: str) -> Observation:
    nodes_of = benchmark.gpus_per_node or hardware.gpus_per_node
    on = dataclasses.replace(hardware, gpus_per_node=nodes_of)
    shipped = load_efficiency("reference", hardware.gpu.id)
    return Observation(
        pointer=f"{pointer}/seconds",
        what=f"An all-reduce of {benchmark.message_bytes} bytes among {benchmark.ranks} GPUs, {nodes_of} a node",
        kind="all_reduce",
        stack="",
        measured_seconds=benchmark.seconds,
        estimate=lambda efficiency: one_all_reduce_seconds(
            benchmark.message_bytes, benchmark.ranks, on, dataclasses.replace(shipped, gpu=efficiency)
        ),
    )


def _check_format(gpu: Gpu, name: str, pointer: str) -> None:
    if name not in gpu.peak_flops_per_second:
        known = ", ".join(gpu.peak_flops_per_second)
        raise InvalidQuestion(f"{gpu.name} does not compute in {name}; it has {known}.", pointer=f"{pointer}/format")


def _report(
    gpu: Gpu,
    revision: str,
    fit: Calibration,
    peaks: tuple[PeakCheck, ...],
    engines: tuple[EngineCalibration, ...],
) -> CalibrationReport:
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
    )


def _site(stored: StoredCalibration) -> SiteEfficiency:
    return SiteEfficiency(
        revision=stored.revision,
        fractions=stored.efficiencies["fractions"],
        spread=stored.efficiencies["spread"],
        # Calibrations stored by earlier releases measured no engine.
        serving={engine: SiteServing(**found) for engine, found in stored.efficiencies.get("serving", {}).items()},
        provenance=_provenance(stored.gpu, stored.revision),
    )


def _provenance(gpu: str, revision: str) -> str:
    return f"this site's own measurements of {gpu} (calibration {revision})"


def _as_json(report: CalibrationReport) -> dict[str, Any]:
    """Return what is stored of a report; id, revision and time have columns of their own."""
    body: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(report), allow_nan=False))
    return {name: value for name, value in body.items() if name not in ("gpu", "revision", "created_at")}


def _from_json(stored: StoredCalibration) -> CalibrationReport:
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
    )


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
