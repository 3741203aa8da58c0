"""`/healthz`, `/readyz` and `/metrics`: for those who run the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from plimsoll.api.problems import problem_responses
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.planners.version import planner_version
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.observability.records_kept import Records

WithoutKey = Literal["refused", "loopback", "allowed"]

router = APIRouter(tags=["health"], route_class=StrictRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The process is alive."""

    status: Literal["ok"]
    planner_version: str
    without_key: WithoutKey
    """Who needs no key: nobody; this machine, where alone it listens; or anyone at all, as it was set to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Everything a request may need can be reached."""

    status: Literal["ready"]
    database: Literal["ok"]
    queue: Literal["ok"]


@router.get("/healthz", summary="Liveness", response_model=Health, responses=problem_responses(400, 422, 500))
async def healthz(services: Running) -> Health:
    """Looks at nothing but the process itself."""
    settings = services.settings
    without_key: WithoutKey = "refused" if settings.needs_keys else "loopback" if settings.is_on_loopback else "allowed"
    return Health(status="ok", planner_version=planner_version(), without_key=without_key)


@router.get(
    "/readyz",
    summary="Readiness: database and queue",
    response_model=Readiness,
    responses=problem_responses(400, 422, 500, 503),
)
async def readyz(services: Running) -> Readiness:
    """Answers 503 while the database is away, takes no writes, lacks its tables or is an earlier version's.

    The queue lives in it.
    """
    await services.database.check_ready()
    return Readiness(status="ready", database="ok", queue="ok")


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    response_model=None,
    responses={
        **problem_responses(400, 422, 500),
        200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def metrics(services: Running) -> Response:
    """Requests by route and status, searches, plans, jobs, prediction errors, and the process itself."""
    try:
        records: Records | None = await services.records.read()
    except DatabaseUnavailable:
        records = None
    return Response(services.metrics.exposition(records), media_type=CONTENT_TYPE_LATEST)
