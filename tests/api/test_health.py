"""Liveness, readiness, metrics, and what surrounds every answer."""

from __future__ import annotations

import httpx
import pytest

from api.app import create_app
from api.services import DatabaseNotConfigured
from service.settings import Settings


async def test_a_running_service_is_alive_and_ready(client: httpx.AsyncClient):
    assert (await client.get("/healthz")).json()["status"] == "ok"
    assert (await client.get("/readyz")).json() == {"status": "ready", "database": "ok", "queue": "ok"}


async def test_without_a_database_it_is_alive_and_not_ready():
    # Nothing listens on port 1 of this machine.
    app = create_app(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://plimsoll") as client,
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
        httpx.AsyncClient(transport=transport, base_url="http://plimsoll") as client,
    ):
        assert (await client.get("/readyz")).status_code == 503


async def test_an_api_alone_needs_a_database_to_be_named():
    app = create_app(Settings())
    with pytest.raises(DatabaseNotConfigured):
        async with app.router.lifespan_context(app):
            pass


async def test_metrics_count_requests_by_route_and_not_by_address(client: httpx.AsyncClient):
    await client.get("/plans/one-of-many")
    text = (await client.get("/metrics")).text
    assert 'method="GET",route="/plans/{plan_id}",status="404"' in text
    assert "one-of-many" not in text
    assert 'plimsoll_jobs{state="queued"}' in text


async def test_each_answer_says_which_request_it_was(client: httpx.AsyncClient):
    assert (await client.get("/healthz", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    made = (await client.get("/healthz", headers={"x-request-id": "no good"})).headers["x-request-id"]
    assert len(made) == 32
