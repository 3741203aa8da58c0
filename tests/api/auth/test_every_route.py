"""Every route of the contract, asked by everyone who could ask: no key, a dead one, the wrong one, someone else's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta

import httpx
import psycopg
import pytest

from plimsoll.api.app import create_app
from plimsoll.service.access.keys import make_key
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import KEY_SCOPES, KeyScope
from tests.api.auth.test_keys import JOB, served
from tests.api.questions import train

ANYONE = "anyone"
ANY = set(KEY_SCOPES)

# Whoever adds a route says here who may ask it; `admin` may ask them all.
MAY_ASK: dict[str, set[str] | str] = {
    "GET /": ANYONE,
    "GET /ui": ANYONE,
    "GET /healthz": ANYONE,
    "GET /readyz": ANYONE,
    "GET /metrics": set(),
    "POST /plan/train": {"plan"},
    "POST /plan/infer": {"plan"},
    "GET /plans": {"plan"},
    "GET /plans/{plan_id}": {"plan"},
    "GET /plans/{plan_id}/question": {"plan"},
    "GET /plans/{plan_id}/artifacts/{name}": {"plan"},
    "POST /plans/{plan_id}/validate": {"validate"},
    "POST /quantize": {"quantize"},
    "GET /jobs": ANY,
    "GET /jobs/{job_id}": ANY,
    "GET /jobs/{job_id}/events": ANY,
    "POST /jobs/{job_id}/cancel": ANY,
    "GET /models": ANY,
    "GET /models/{id}": ANY,
    "POST /models/describe": ANY,
    "GET /hardware": ANY,
    "GET /hardware/{id}": ANY,
    "GET /hardware/{id}/calibration": ANY,
    "PUT /hardware/{id}/calibration": set(),
    "DELETE /hardware/{id}/calibration": set(),
    "GET /formats": ANY,
    "GET /accuracy": ANY,
    "POST /measurements": {"plan"},
    "DELETE /measurements/{measurement_id}": set(),
    "POST /admission/validate": {"plan"},
}
CLOSED = [route for route, who in MAY_ASK.items() if who != ANYONE]
OF_A_PLAN = [route for route in MAY_ASK if "{plan_id}" in route]
OF_A_JOB = [route for route in MAY_ASK if "{job_id}" in route]


def routes() -> Iterator[str]:
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        yield from (f"{method.upper()} {path}" for method in methods)


def test_every_route_of_the_contract_is_asked_here():
    assert set(routes()) == MAY_ASK.keys()


@dataclass
class Service:
    """A service that listens everywhere, and the headers of keys that it knows."""

    client: httpx.AsyncClient
    of_scope: dict[str, dict[str, str]]
    dead: dict[str, dict[str, str]]

    async def status(self, route: str, headers: dict[str, str] | None = None, **ids: str) -> int:
        """Return how a route answers to an empty object, with ids that are nobody's unless given."""
        method, path = route.split(" ")
        known = {"id": "h100-sxm-80gb", "measurement_id": "999999", "name": "torchrun", **ids}
        address = re.sub(r"{(\w+)}", lambda part: known.get(part[1], "none"), path)
        response = await self.client.request(method, address, json={}, headers=headers)
        assert response.status_code < 500
        if response.status_code == 401:
            assert response.headers["www-authenticate"] == "Bearer"
        return response.status_code


async def key(database: Database, *scopes: KeyScope, lifetime: timedelta | None = None) -> tuple[str, dict[str, str]]:
    """Return a new key's id, and the header that shows it."""
    new = make_key("test", scopes, lifetime=lifetime)
    await database.keys.add(new.record, lifetime=new.lifetime)
    return new.record.key_id, {"authorization": f"Bearer {new.key}"}


@pytest.fixture
async def service(database: Database, database_url: str) -> AsyncIterator[Service]:
    of_scope = {scope: (await key(database, scope))[1] for scope in KEY_SCOPES}
    revoked_id, revoked = await key(database, "admin")
    await database.keys.revoke(revoked_id)
    expired_id, expired = await key(database, "admin", lifetime=timedelta(days=1))
    with psycopg.connect(libpq_url(database_url)) as connection:
        connection.execute("UPDATE api_keys SET expires_at = now() WHERE key_id = %s", (expired_id,))
    right_id = of_scope["admin"]["authorization"].split("_")[1]
    dead = {
        "revoked": revoked,
        "expired": expired,
        "another secret": {"authorization": f"Bearer plimsoll_{right_id}_{43 * 'A'}"},
        "unknown": {"authorization": f"Bearer plimsoll_{16 * '0'}_{43 * 'A'}"},
        "no key": {"authorization": "Bearer secret"},
        "another kind": {"authorization": "Basic dXNlcjpwYXNz"},
    }
    async with served(database_url, key_requests_per_second=0, wrong_keys_per_minute=0) as client:
        yield Service(client, of_scope, dead)


async def test_a_stranger_is_answered_nowhere_but_where_anyone_is(service: Service):
    answered = {route for route in MAY_ASK if await service.status(route) != 401}
    assert answered == {route for route, who in MAY_ASK.items() if who == ANYONE}


async def test_a_key_that_is_not_in_force_opens_no_route(service: Service):
    opened = [
        (why, route)
        for why, headers in service.dead.items()
        for route in CLOSED
        if await service.status(route, headers) != 401
    ]
    assert opened == []


async def test_each_scope_opens_the_routes_that_it_was_made_for_and_no_other(service: Service):
    for scope, headers in service.of_scope.items():
        statuses = {route: await service.status(route, headers) for route in CLOSED}
        assert 401 not in statuses.values()
        opened = {route for route, status in statuses.items() if status != 403}
        assert opened == {route for route in CLOSED if scope == "admin" or scope in MAY_ASK[route]}


async def test_what_is_one_keys_own_is_not_there_for_another(database: Database, service: Service):
    _, owner = await key(database, "plan", "quantize", "validate")
    _, other = await key(database, "plan", "quantize", "validate")
    client = service.client
    plan_id = (await client.post("/plan/train", json=train(), headers=owner)).json()["plan_id"]
    job_id = (await client.post("/quantize", json=JOB, headers=owner)).json()["job"]["job_id"]
    # A stream of its events ends once it has.
    await client.post(f"/jobs/{job_id}/cancel", headers=owner)
    for route in (*OF_A_PLAN, *OF_A_JOB):
        ids = {"plan_id": plan_id, "job_id": job_id}
        assert await service.status(route, other, **ids) == (422 if route.startswith("POST /plans") else 404), route
        assert await service.status(route, owner, **ids) in (200, 422), route
        assert await service.status(route, service.of_scope["admin"], **ids) in (200, 422), route
    # With a body that makes sense, too.
    proof = {"json": {"level": "count"}}
    assert (await client.post(f"/plans/{plan_id}/validate", headers=other, **proof)).status_code == 404
    report = {"plan_id": plan_id, "peak_bytes": 10**9, "source": "test"}
    assert (await client.post("/measurements", json=report, headers=other)).status_code == 404
    for path in ("/plans", "/jobs"):
        assert (await client.get(path, headers=other)).json()["items"] == []
        assert len((await client.get(path, headers=owner)).json()["items"]) == 1
