"""Traces for OpenTelemetry: from the request through the queue to the worker. Off unless a collector is named.

Nothing of OpenTelemetry is imported until a `Tracer` is made. What is passed on between
processes is a W3C `traceparent` (https://www.w3.org/TR/trace-context/): in the request's
header, then beside the job in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import structlog

from plimsoll.planners import PLANNER_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

TRACEPARENT = "traceparent"
SpanRole = Literal["server", "consumer"]

_in_force: ContextVar[str | None] = ContextVar("traceparent", default=None)


class TracingNotInstalled(Exception):
    """Traces are asked for, and the packages that make them are not here."""


def current_traceparent() -> str | None:
    """Return what a process must be told that goes on with this work; None where nothing is traced."""
    return _in_force.get()


class Tracer:
    """Makes spans and sends them to a collector, in a thread of its own."""

    def __init__(self, processor: SpanProcessor, *, service: str) -> None:
        """Trace as the service of that name; spans go to `processor` as they end."""
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({SERVICE_NAME: service, SERVICE_VERSION: PLANNER_VERSION})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("plimsoll")

    @contextmanager
    def span(self, name: str, role: SpanRole, *, parent: str | None, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """Make a span of what happens within, below the `parent` that another process named; logs carry its ids."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        above = propagator.extract({} if parent is None else {TRACEPARENT: parent})
        kind = SpanKind.SERVER if role == "server" else SpanKind.CONSUMER
        with self._tracer.start_as_current_span(name, context=above, kind=kind, attributes={**attributes}) as span:
            carried: dict[str, str] = {}
            propagator.inject(carried)
            ids = span.get_span_context()
            token = _in_force.set(carried.get(TRACEPARENT))
            try:
                with structlog.contextvars.bound_contextvars(
                    trace_id=f"{ids.trace_id:032x}", span_id=f"{ids.span_id:016x}"
                ):
                    yield span
            finally:
                _in_force.reset(token)

    def close(self) -> None:
        """Send what is left, for some seconds at most; call it off the event loop."""
        self._provider.shutdown()


def tracer_to(traces_url: str | None, *, service: str) -> Tracer | None:
    """Return a tracer that sends to a collector (OTLP over HTTP), None without one; raises TracingNotInstalled."""
    if traces_url is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingNotInstalled("Traces need further packages: pip install 'plimsoll[traces]'.") from error
    return Tracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_url)), service=service)


def job_span(tracer: Tracer | None, job_id: str, parent: str | None) -> AbstractContextManager[Span | None]:
    """Return the span of one attempt at a job, below the request that queued it; nothing without a tracer."""
    if tracer is None:
        return nullcontext()
    return tracer.span("run job", "consumer", parent=parent, attributes={"plimsoll.job_id": job_id})
