"""The application: routes, error handlers and middleware put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from plimsoll.api.auth.forwarded import Forwarded
from plimsoll.api.auth.middleware import Authentication, SearchLimit, StreamLimit
from plimsoll.api.compression import Compression
from plimsoll.api.contract import DESCRIPTION, TITLE, contract_of
from plimsoll.api.errors import add_error_handlers
from plimsoll.api.heads import Heads
from plimsoll.api.kept_answers import KeptAnswers
from plimsoll.api.metrics import Metrics
from plimsoll.api.middleware import AnswerHeaders, BodyLimit, PlainAddress, TimeLimit, Timing
from plimsoll.api.routes import accuracy, admission, catalogue, health, jobs, pages, planning, plans
from plimsoll.api.services import running_services
from plimsoll.api.tracing import Traced
from plimsoll.planners import PLANNER_VERSION
from plimsoll.service.ground.settings import Settings
from plimsoll.service.observability.tracing import tracer_to

# Below it an answer fits in one packet either way.
LEAST_COMPRESSED_BYTES = 1024
# A plan's 25 KB become 6 KB in 0.2 ms of the event loop; level 9 saves 1 % more in 0.8 ms.
COMPRESSION_LEVEL = 5
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
    )
    for router in ROUTERS:
        app.include_router(router)
    app.state.routes = tuple(route for router in ROUTERS for route in _routes(router))
    add_error_handlers(app)
    # The last one added stands outermost.
    app.add_middleware(TimeLimit, most_seconds=settings.longest_request_seconds)
    app.add_middleware(BodyLimit, most_bytes=settings.max_body_bytes, most_seconds=settings.body_timeout_seconds)
    app.add_middleware(SearchLimit, paths=frozenset(route.path for route in _routes(planning.router)))
    app.add_middleware(StreamLimit, most_of_one=settings.key_streams)
    app.add_middleware(Authentication, settings=settings)
    app.add_middleware(Forwarded, proxies=settings.trusted_proxies)
    app.add_middleware(PlainAddress)
    app.add_middleware(Compression, minimum_size=LEAST_COMPRESSED_BYTES, compresslevel=COMPRESSION_LEVEL)
    app.add_middleware(KeptAnswers)
    app.add_middleware(Heads)
    app.add_middleware(Timing, metrics=metrics)
    if tracer is not None:
        app.add_middleware(Traced, tracer=tracer)
    app.add_middleware(AnswerHeaders, is_https=settings.tls_certificate_file is not None)
    app.openapi = lambda: contract_of(app)  # type: ignore[method-assign]
    return app


def _routes(router: APIRouter) -> list[APIRoute]:
    return [route for route in router.routes if isinstance(route, APIRoute)]


def _operation_id(route: APIRoute) -> str:
    return route.name if route.path != "/ui" else f"{route.name}_ui"
