"""Liveness, readiness, metrics, and what surrounds every answer."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings
from plimsoll.service.running.starting import CannotStart
from tests.api.questions import train


async def test_a_running_service_is_alive_and_ready(client: httpx.AsyncClient):
    assert (await client.get("/healthz")).json()["status"] == "ok"
    assert (await client.get("/readyz")).json() == {"status": "ready", "database": "ok", "queue": "ok"}


async def test_without_a_database_it_is_alive_and_not_ready():
    # Nothing listens on port 1 of this machine.
    app = create_app(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        response = await client.get("/readyz")
        assert response.status_code == 503
        assert response.json()["code"] == "database-unavailable"
        assert "plimsoll_database_up 0.0" in (await client.get("/metrics")).text


async def test_an_empty_database_is_not_ready(empty_database_url: str):
    app = create_app(Settings(database_url=empty_database_url))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert (await client.get("/readyz")).status_code == 503


async def test_an_api_alone_needs_a_database_to_be_named():
    app = create_app(Settings())
    with pytest.raises(CannotStart, match="PLIMSOLL_DATABASE_URL is not set"):
        async with app.router.lifespan_context(app):
            pass


async def test_metrics_count_requests_by_route_and_not_by_address(client: httpx.AsyncClient):
    await client.get("/plans/one-of-many")
    text = (await client.get("/metrics")).text
    assert 'method="GET",route="/plans/{plan_id}",status="404"' in text
    assert "one-of-many" not in text
    assert 'plimsoll_jobs{state="queued"}' in text


async def test_every_metric_is_named_where_it_is_explained(client: httpx.AsyncClient):
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    told = (await client.get("/metrics")).text
    names = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (plimsoll_\w+)", told, re.M)}
    ours = {name for name in names if not name.endswith("_created")}
    assert len(ours) >= 12
    assert {name for name in ours if f"`{name}`" not in page} == set()


async def test_each_answer_says_which_request_it_was(client: httpx.AsyncClient):
    assert (await client.get("/healthz", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    made = (await client.get("/healthz", headers={"x-request-id": "no good"})).headers["x-request-id"]
    assert len(made) == 32


async def test_metrics_tell_searches_verdicts_queues_outcomes_and_errors(client: httpx.AsyncClient):
    question = train(training={"global_batch_size": 16})
    plan = (await client.post("/plan/train", json=question)).json()
    await client.get(f"/plans/{plan['plan_id']}")
    job = {"model": question["model"], "scheme": "nf4"}
    cancelled = (await client.post("/quantize", json=job)).json()["job"]["job_id"]
    await client.post(f"/jobs/{cancelled}/cancel")
    await client.post("/quantize", json=job)
    report = {"plan_id": plan["plan_id"], "peak_bytes": plan["plan"]["memory"]["peak_bytes"], "source": "test"}
    assert (await client.post("/measurements", json=report)).status_code == 201
    told = (await client.get("/metrics")).text
    assert 'plimsoll_http_request_seconds_count{method="POST",route="/plan/train",status="200"} 1.0' in told
    # Asked for twice, and searched for once.
    assert f'plimsoll_plans_answered_total{{kind="train",verdict="{plan["verdict"]}"}} 2.0' in told
    assert 'plimsoll_search_seconds_count{kind="train"} 1.0' in told
    assert f'plimsoll_search_layouts_sum{{kind="train"}} {plan["search"]["layouts_considered"]:.1f}' in told
    assert 'plimsoll_queue_waiting{queue="cpu"} 1.0' in told
    assert 'plimsoll_queue_oldest_seconds{queue="cpu"}' in told
    assert 'plimsoll_job_outcomes{kind="quantize",state="cancelled"} 1.0' in told
    framework = plan["plan"]["layout"]["framework"]
    labels = f'family="llama",framework="{framework}",gpu="h100-sxm-80gb",level="run"'
    assert f"plimsoll_prediction_median_error{{{labels}}} 0.0" in told
