"""The application: routes, error handlers and middleware put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from plimsoll.api.contract import DESCRIPTION, TITLE, contract_of
from plimsoll.api.door import Door
from plimsoll.api.errors import add_error_handlers
from plimsoll.api.metrics import Metrics
from plimsoll.api.route_table import RouteTable
from plimsoll.api.routes import accuracy, admission, catalogue, health, jobs, pages, planning, plans
from plimsoll.api.services import running_services
from plimsoll.api.tracing import Traced
from plimsoll.planners import PLANNER_VERSION
from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.tracing import tracer_to

ROUTERS = (
    planning.router,
    plans.router,
    jobs.router,
    catalogue.router,
    accuracy.router,
    admission.router,
    health.router,
    pages.router,
)


def create_app(settings: Settings) -> FastAPI:
    """Return the application; the database is opened when it starts."""
    metrics = Metrics()
    tracer = tracer_to(settings.traces_url, service="plimsoll-api")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running_services(settings, metrics) as services:
            app.state.services = services
            yield
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = FastAPI(
        title=TITLE,
        version=PLANNER_VERSION,
        description=DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        # FastAPI's own pages load their scripts from elsewhere; `api.routes.pages` has one that does not.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        # Requests are traced by `api.tracing`, and counted by `api.door`.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.routes = tuple(route for router in ROUTERS for route in _routes(router))
    app.router.routes.insert(0, RouteTable(app.state.routes))
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    searches = frozenset(route.path for route in _routes(planning.router))
    app.add_middleware(Door, settings=settings, metrics=metrics, search_paths=searches)
    # The last one added stands outermost.
    if tracer is not None:
        app.add_middleware(Traced, tracer=tracer)
    app.openapi = lambda: contract_of(app)  # type: ignore[method-assign]
    return app


def _routes(router: APIRouter) -> list[APIRoute]:
    return [route for route in router.routes if isinstance(route, APIRoute)]


def _operation_id(route: APIRoute) -> str:
    return route.name if route.path != "/ui" else f"{route.name}_ui"
