"""What the routes work with: made when the app starts, closed when it stops."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends
from starlette.requests import Request

from plimsoll.api.metrics import Metrics
from plimsoll.planners.catalogue import Catalogue, catalogue
from plimsoll.service.access.keys import KeyRing
from plimsoll.service.access.rate_limits import StorageLimits
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.calibrations.service import CalibrationService
from plimsoll.service.catalogue.pages import CataloguePages
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.quantizations import QuantizationService
from plimsoll.service.jobs.service import JobService
from plimsoll.service.jobs.validations import ValidationService
from plimsoll.service.measurements.service import MeasuringService
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.observability.records_kept import RecordsKept
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.answers import TimedSearch
from plimsoll.service.plans.learned_starts import LearningService
from plimsoll.service.plans.readers import PlanReaders
from plimsoll.service.plans.service import REMEMBERED_SECONDS, PlanningService
from plimsoll.service.running.starting import CannotStart
from plimsoll.service.workloads.objects.kubernetes_api import api_of, config_maps_of, runtimes_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that routes ask."""

    database: Database
    catalogue: Catalogue
    pages: CataloguePages
    planning: PlanningService
    jobs: JobService
    validation: ValidationService
    quantization: QuantizationService
    calibrations: CalibrationService
    measuring: MeasuringService
    admission: AdmissionService
    metrics: Metrics
    settings: Settings
    key_ring: KeyRing
    plan_readers: PlanReaders
    records: RecordsKept


@asynccontextmanager
async def running_services(settings: Settings, metrics: Metrics) -> AsyncIterator[Services]:
    """Yield the services on an open database.

    A database that does not answer yet is no reason to stop: connections are
    made when they are needed, and until then `/readyz` says what is missing.
    """
    url = check_database_is_named(settings)
    if settings.allow_anonymous and not settings.is_on_loopback:
        log.warning("anonymous access", host=settings.host, detail="Anyone who reaches this address may do anything.")
    database = Database(
        url,
        pool_size=settings.database_pool_size,
        queue_limit=settings.queue_limit,
        key_job_limit=settings.key_job_limit,
    )
    try:
        await database.open()
    except DatabaseUnavailable as error:
        log.warning("database unavailable", doing="starting", error=error.detail)
    try:
        yield _services(database, settings, metrics)
    finally:
        await database.close()


def check_database_is_named(settings: Settings) -> str:
    """Return the database's address; raises CannotStart without one."""
    if settings.database_url is None:
        raise CannotStart(
            "PLIMSOLL_DATABASE_URL is not set. `plimsoll serve` runs the API together with a database of its own."
        )
    return settings.database_url


def _note_plan(
    metrics: Metrics, readers: PlanReaders, plan: StoredPlan, search: TimedSearch, reader: str | None
) -> None:
    """Count a plan that was made, log it, and remember who may see it."""
    metrics.observe_search(plan.kind, search)
    if reader is not None:
        readers.remember(reader, plan.plan_id)
    log.info(
        "plan made",
        plan_id=plan.plan_id,
        kind=plan.kind,
        verdict=plan.verdict,
        layouts=search.layouts_considered,
        seconds=round(search.seconds, 4),
    )


def _services(database: Database, settings: Settings, metrics: Metrics) -> Services:
    known = catalogue()
    models = ModelResolver(known, settings)
    calibrations = CalibrationService(database, known, models)
    learning = LearningService(database)
    plan_readers = PlanReaders(database.keys, remembered_seconds=REMEMBERED_SECONDS)
    storage = StorageLimits(settings.key_stored_bytes_per_day)
    planning = PlanningService(
        database,
        settings,
        known,
        models,
        calibrations.in_force,
        learnings=learning.known,
        on_planned=functools.partial(_note_plan, metrics, plan_readers),
        storage=storage,
    )
    jobs = JobService(database, settings, storage=storage)
    kubernetes = api_of(settings)
    return Services(
        database=database,
        catalogue=known,
        pages=CataloguePages(known, models),
        planning=planning,
        jobs=jobs,
        validation=ValidationService(database, jobs),
        quantization=QuantizationService(models, jobs, settings),
        calibrations=calibrations,
        measuring=MeasuringService(database, known, learning, planning.plan_infer, storage),
        admission=AdmissionService(
            answers=Sizer(planning.models, known),
            plans=database.plans,
            catalogue=known,
            policies=Policies(settings.admission_policy_file),
            config_maps=config_maps_of(kubernetes),
            runtimes=runtimes_of(kubernetes),
        ),
        metrics=metrics,
        settings=settings,
        key_ring=KeyRing(database.keys),
        plan_readers=plan_readers,
        records=RecordsKept(database),
    )


async def _running(request: Request) -> Services:
    # A coroutine, though it waits for nothing: FastAPI sends plain functions to a thread.
    services: Services = request.app.state.services
    return services


Running = Annotated[Services, Depends(_running)]
