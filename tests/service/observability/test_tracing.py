"""Traces: from a request through the queue to the worker, and nothing of them where they are not wanted."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
import structlog
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from plimsoll.api.tracing import Traced
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.service import JobService
from plimsoll.service.observability import tracing
from plimsoll.service.observability.tracing import Tracer, TracingNotInstalled, current_traceparent, tracer_to
from plimsoll.service.queue.engine import build_queue, run_queue_worker
from plimsoll.service.worker.processes.child import PROJECT_ROOT

# The example of https://www.w3.org/TR/trace-context/, 3.2: trace and span of the caller.
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exported):
    made = Tracer(SimpleSpanProcessor(exported), service="test")
    yield made
    made.close()


def test_a_span_continues_the_trace_that_was_given(tracer, exported):
    with tracer.span("work", "server", parent=PARENT, attributes={"a": 1}):
        assert current_traceparent().startswith(f"00-{TRACE}-")
        assert structlog.contextvars.get_contextvars()["trace_id"] == TRACE
    (span,) = exported.get_finished_spans()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert (span.kind, span.attributes["a"]) == (SpanKind.SERVER, 1)
    assert (current_traceparent(), structlog.contextvars.get_contextvars()) == (None, {})


@pytest.mark.parametrize("parent", [None, "", "no trace", f"00-{'0' * 32}-{SPAN}-01"])
def test_without_a_trace_that_makes_sense_a_new_one_begins(tracer, exported, parent):
    with tracer.span("work", "server", parent=parent, attributes={}):
        pass
    assert exported.get_finished_spans()[0].parent is None


def test_what_goes_wrong_within_is_noted(tracer, exported):
    with pytest.raises(ValueError, match="no"), tracer.span("work", "consumer", parent=None, attributes={}):
        raise ValueError("no")
    assert exported.get_finished_spans()[0].status.status_code is StatusCode.ERROR


async def test_a_request_is_traced_by_its_route(tracer, exported):
    async def app(scope, receive, send):
        scope["route"] = type("Route", (), {"path": "/plans/{plan_id}"})
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(app=Traced(app, tracer))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.get("/plans/one-of-many", headers={"traceparent": PARENT})
    (span,) = exported.get_finished_spans()
    assert span.name == "GET /plans/{plan_id}"
    assert span.attributes["http.response.status_code"] == 404
    assert f"{span.context.trace_id:032x}" == TRACE


async def test_a_job_is_run_in_the_trace_of_the_request_that_queued_it(tracer, exported, database, database_url):
    ran: asyncio.Queue[str | None] = asyncio.Queue()

    async def run_job(job_id: str) -> None:
        ran.put_nowait(current_traceparent())

    with tracer.span("POST /quantize", "server", parent=PARENT, attributes={}):
        job = await JobService(database, Settings()).submit("quantize", {}, route="/quantize")
    queue, _ = build_queue(database_url, run_job, concurrency=1, tracer=tracer)
    async with queue.open_async():
        worker = asyncio.ensure_future(
            run_queue_worker(queue, name="w", queues=["cpu"], concurrency=1, heartbeat_seconds=1)
        )
        in_worker = await ran.get()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    request, attempt = exported.get_finished_spans()
    assert (attempt.name, attempt.kind, attempt.attributes["plimsoll.job_id"]) == (
        "run job",
        SpanKind.CONSUMER,
        job.job_id,
    )
    assert f"{attempt.context.trace_id:032x}" == TRACE
    assert attempt.parent.span_id == request.context.span_id
    assert in_worker.startswith(f"00-{TRACE}-")


def test_without_a_collector_nothing_is_traced_and_nothing_imported():
    assert tracer_to(None, service="test") is None
    program = (
        "import sys, plimsoll.api.main, plimsoll.service.worker.main; "
        "from plimsoll.service.ground.settings import Settings; "
        "plimsoll.api.main.create_app(Settings()); "
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=PROJECT_ROOT, check=False).returncode == 0


def test_a_collector_that_is_not_there_costs_no_request():
    # Nothing listens on port 1 of this machine; what cannot be sent is given up at the end.
    tracer = tracer_to("http://127.0.0.1:1/v1/traces", service="test")
    assert tracer is not None
    with tracer.span("work", "server", parent=None, attributes={}):
        pass
    tracer._provider.shutdown()


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingNotInstalled, match=r"plimsoll\[traces\]"):
        tracer_to("http://127.0.0.1:1/v1/traces", service="test")
    assert tracing.current_traceparent() is None
