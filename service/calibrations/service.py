"""A site's own efficiencies: fitted from its measurements, stored, and handed to later plans."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from planners.calibration import Observation, calibrate
from planners.catalogue import Catalogue
from planners.hardware import Gpu, SiteEfficiency, SiteServing
from planners.serving.calibration import calibrate_serving
from planners.timing.efficiency import load_efficiency
from service.calibrations.measured_deployments import measured_deployments, site_serving
from service.calibrations.measured_jobs import measured_job
from service.calibrations.microbenchmarks import measured_benchmark
from service.calibrations.report import CalibrationReport, PeakCheck, calibration_report, report_as_json, stored_report
from service.canonical import digest
from service.errors import CalibrationNotFound
from service.models import ModelResolver
from service.persistence.records import Calibration as StoredCalibration
from service.persistence.records import StoredPlan
from service.requests.calibration import CalibrationRequest

if TYPE_CHECKING:
    # For its name alone: clients read the answers of this module, and need no SQLAlchemy.
    from service.persistence.database import Database

# Another replica's calibration is in force here after this long at the latest.
KNOWN_FOR_SECONDS = 2.0


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
                report=report_as_json(report),
            )
        )
        self._known_until = 0.0
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
            observation, peak = measured_job(gpu, run, stored.get(number), self._models, f"/measurements/{number}")
            observations.append(observation)
            peaks.extend([peak] if peak is not None else [])
        for number, benchmark in enumerate(request.microbenchmarks):
            observations.append(measured_benchmark(gpu, benchmark, f"/microbenchmarks/{number}"))
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
        return calibration_report(gpu, revision, fit, tuple(peaks), engines), site


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
