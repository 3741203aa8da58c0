"""A site's own efficiencies: fitted from its measurements, stored, and handed to later plans."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plimsoll.planners.calibration.serving import MeasuredServing, calibrate_serving
from plimsoll.planners.calibration.training import Observation, calibrate
from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu, SiteEfficiency, SiteServing
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.service.calibrations.measured_deployments import measured_deployment, site_serving
from plimsoll.service.calibrations.measured_jobs import measured_job
from plimsoll.service.calibrations.microbenchmarks import measured_benchmark
from plimsoll.service.calibrations.recorded_runs import FROM_RECORD, RunToFit, found_or_unused, recorded_runs
from plimsoll.service.calibrations.report import (
    CalibrationReport,
    PeakCheck,
    RecordUse,
    UnusedMeasurement,
    calibration_report,
    report_as_json,
    stored_report,
)
from plimsoll.service.ground.cached_value import CachedValue
from plimsoll.service.ground.canonical import digest
from plimsoll.service.ground.errors import CalibrationNotFound
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import Calibration as StoredCalibration
from plimsoll.service.requests.calibration import CalibrationRequest, CalibrationRun, CalibrationServing

if TYPE_CHECKING:
    # For its name alone: clients read the answers of this module, and need no SQLAlchemy.
    from plimsoll.service.persistence.database import Database

# Another replica's calibration is in force here after this long at the latest.
KNOWN_FOR_SECONDS = 2.0


class CalibrationService:
    """Fits, keeps and hands out calibrations; the latest of a GPU is in force."""

    def __init__(self, database: Database, catalogue: Catalogue, models: ModelResolver) -> None:
        self._database = database
        self._catalogue = catalogue
        self._models = models
        self._known = CachedValue(self._read, most_seconds=KNOWN_FOR_SECONDS)

    async def calibrate(self, gpu: Gpu, request: CalibrationRequest) -> CalibrationReport:
        """Fit and store a GPU's efficiencies; raises PlanNotFound, and InvalidQuestion at what cannot be."""
        runs = await self._sent("/measurements", request.measurements)
        runs += await self._sent("/serving", request.serving)
        unused: list[UnusedMeasurement] = []
        if request.from_record:
            recorded, unused = await recorded_runs(self._database, gpu.id)
            runs += recorded
        report, site = await asyncio.to_thread(self._fit, gpu, request, runs, unused)
        await self._database.calibrations.put(
            StoredCalibration(
                gpu=gpu.id,
                revision=site.revision,
                efficiencies={
                    "fractions": dict(site.fractions),
                    "spread": dict(site.spread),
                    "serving": {engine: dataclasses.asdict(found) for engine, found in site.serving.items()},
                },
                report=report_as_json(report),
            )
        )
        self._known.forget()
        return await self.report(gpu)

    async def report(self, gpu: Gpu) -> CalibrationReport:
        """Return the calibration in force; raises CalibrationNotFound."""
        found = await self._database.calibrations.find(gpu.id)
        if found is None:
            raise CalibrationNotFound(gpu.id)
        return stored_report(found)

    async def remove(self, gpu: Gpu) -> None:
        """Forget every calibration of a GPU, so that what ships holds again; raises CalibrationNotFound."""
        if not await self._database.calibrations.delete(gpu.id):
            raise CalibrationNotFound(gpu.id)
        self._known.forget()

    async def in_force(self) -> Mapping[str, SiteEfficiency]:
        """Return every GPU's own efficiencies by its id, as they were at most a moment ago."""
        return await self._known.get()

    async def _read(self) -> Mapping[str, SiteEfficiency]:
        found = await self._database.calibrations.in_force()
        return {gpu: _site(calibration) for gpu, calibration in found.items()}

    async def _sent(self, pointer: str, runs: Sequence[CalibrationRun | CalibrationServing]) -> list[RunToFit]:
        """Return the runs of a request, each with the plan that it names; raises PlanNotFound."""
        return [
            RunToFit(
                pointer=f"{pointer}/{number}",
                run=run,
                plan=None if run.plan_id is None else await self._database.plans.get(run.plan_id),
            )
            for number, run in enumerate(runs)
        ]

    def _fit(
        self, gpu: Gpu, request: CalibrationRequest, runs: Sequence[RunToFit], unused: Sequence[UnusedMeasurement]
    ) -> tuple[CalibrationReport, SiteEfficiency]:
        jobs, deployments, unfit = self._resolved(gpu, runs)
        benchmarks = [
            measured_benchmark(gpu, benchmark, f"/microbenchmarks/{number}")
            for number, benchmark in enumerate(request.microbenchmarks)
        ]
        observations = [*(observation for observation, _ in jobs), *benchmarks]
        unused = (*unused, *unfit)
        if not observations and not deployments:
            raise InvalidQuestion(
                f"None of {len(unused)} speeds on record can be fitted; measurement {unused[0].measurement_id}: "
                f"{unused[0].reason}",
                pointer=FROM_RECORD,
            )
        peaks = tuple(peak for _, peak in jobs if peak is not None)
        fit = calibrate(observations, load_efficiency(gpu_id=gpu.id).gpu)
        engines = calibrate_serving(deployments)
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
        record = _record_use(runs, unused) if request.from_record else None
        return calibration_report(gpu, revision, fit, peaks, engines, record), site

    def _resolved(
        self, gpu: Gpu, runs: Sequence[RunToFit]
    ) -> tuple[list[tuple[Observation, PeakCheck | None]], list[MeasuredServing], list[UnusedMeasurement]]:
        """Return what is fitted of training and of serving, and what on record cannot be."""
        jobs: list[tuple[Observation, PeakCheck | None]] = []
        deployments: list[MeasuredServing] = []
        unused: list[UnusedMeasurement] = []
        for each in runs:
            found = found_or_unused(each, lambda each=each: self._measured(gpu, each))  # type: ignore[misc]
            if isinstance(found, UnusedMeasurement):
                unused.append(found)
            elif isinstance(found, MeasuredServing):
                deployments.append(found)
            else:
                jobs.append(found)
        return jobs, deployments, unused

    def _measured(self, gpu: Gpu, each: RunToFit) -> tuple[Observation, PeakCheck | None] | MeasuredServing:
        if isinstance(each.run, CalibrationServing):
            return measured_deployment(gpu, each.run, each.plan, self._models, each.pointer)
        return measured_job(gpu, each.run, each.plan, self._models, each.pointer)


def _record_use(runs: Sequence[RunToFit], unused: Sequence[UnusedMeasurement]) -> RecordUse:
    left = {each.measurement_id for each in unused}
    recorded = (each.measurement_id for each in runs if each.measurement_id is not None)
    return RecordUse(used=tuple(number for number in recorded if number not in left), unused=tuple(unused))


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
