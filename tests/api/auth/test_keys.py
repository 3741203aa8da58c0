"""Strangers get nothing, and keys get what they were made for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from plimsoll.api.app import create_app
from plimsoll.service.access.keys import make_key
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.database import Database
from tests.api.questions import train

STRANGE_ADDRESS = ("203.0.113.7", 40_000)
JOB = {"model": train()["model"], "scheme": "nf4"}


@asynccontextmanager
async def served(
    database_url: str, address: tuple[str, int] = STRANGE_ADDRESS, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client, at an address that is not this machine's, of a service that listens everywhere."""
    app = create_app(Settings(database_url=database_url, **{"host": "0.0.0.0", **changes}))  # noqa: S104
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=address)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def a_key(database: Database, *scopes: Any, lifetime: timedelta | None = None) -> dict[str, str]:
    """Return the header of a new key."""
    new = make_key("test", scopes, lifetime=lifetime)
    await database.keys.add(new.record, lifetime=new.lifetime)
    return {"authorization": f"Bearer {new.key}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/plan/train"),
        ("POST", "/plan/infer"),
        ("GET", "/plans"),
        ("GET", "/jobs"),
        ("GET", "/models"),
        ("GET", "/metrics"),
        ("POST", "/admission/validate"),
        ("PUT", "/hardware/h100/calibration"),
        ("GET", "/no/such/address"),
        ("OPTIONS", "/plans"),
    ],
)
async def test_a_stranger_is_refused_before_anything_is_read(database_url: str, method: str, path: str):
    async with served(database_url) as client:
        response = await client.request(method, path, content=b"not even JSON")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["code"] == "unauthenticated"
    assert not [name for name in response.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/ui", "/docs", "/openapi.json"])
async def test_what_holds_nobodys_data_needs_no_key(database_url: str, path: str):
    async with served(database_url) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, "refused"), ({"allow_anonymous": True}, "allowed"), ({"host": "127.0.0.1"}, "loopback")],
)
async def test_liveness_tells_who_needs_no_key(database_url: str, changes: dict[str, Any], told: str):
    async with served(database_url, **changes) as client:
        assert (await client.get("/healthz")).json()["without_key"] == told
        assert (await client.get("/plans")).status_code == (401 if told == "refused" else 200)


async def test_each_scope_opens_its_own_routes(database: Database, database_url: str):
    plan, quantize, admin = [await a_key(database, scope) for scope in ("plan", "quantize", "admin")]
    async with served(database_url) as client:
        assert (await client.post("/plan/train", json=train(), headers=plan)).status_code == 200
        refused = await client.post("/quantize", json=JOB, headers=plan)
        assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")
        assert (await client.post("/quantize", json=JOB, headers=quantize)).status_code == 202
        assert (await client.post("/plan/train", json=train(), headers=quantize)).status_code == 403
        assert (await client.post("/quantize", json=JOB, headers=admin)).status_code == 202
        assert (await client.get("/models", headers=quantize)).status_code == 200
        assert (await client.put("/hardware/h100/calibration", json={}, headers=plan)).status_code == 403


async def test_a_plan_that_queues_its_proof_needs_the_scope_to_validate(database: Database, database_url: str):
    plan, both = await a_key(database, "plan"), await a_key(database, "plan", "validate")
    question = train(framework="fsdp2", validate="count")
    async with served(database_url) as client:
        assert (await client.post("/plan/train", json=question, headers=plan)).status_code == 403
        assert (await client.post("/plan/train", json=question, headers=both)).status_code == 200


async def test_keys_see_their_own_plans_and_administrators_all(database: Database, database_url: str):
    first, second, admin = [await a_key(database, scope) for scope in ("plan", "plan", "admin")]
    async with served(database_url) as client:
        plan_id = (await client.post("/plan/train", json=train(), headers=first)).json()["plan_id"]
        for path in (f"/plans/{plan_id}", f"/plans/{plan_id}/artifacts/torchrun"):
            assert [(await client.get(path, headers=key)).status_code for key in (first, second, admin)] == [
                200, 404, 200,
            ]  # fmt: skip
        listed = [(await client.get("/plans", headers=key)).json()["items"] for key in (first, second, admin)]
        assert [len(items) for items in listed] == [1, 0, 1]
        report = {"plan_id": plan_id, "peak_bytes": 10**9, "source": "test"}
        assert (await client.post("/measurements", json=report, headers=second)).status_code == 404
        assert (await client.post("/measurements", json=report, headers=first)).status_code == 201
        points = [(await client.get("/accuracy", headers=key)).json()["points"] for key in (first, second, admin)]
        assert [len(points_seen) for points_seen in points] == [1, 0, 1]
        told = [(await client.get("/accuracy?format=csv", headers=key)).text for key in (first, second, admin)]
        assert [plan_id in text for text in told] == [True, False, True]
        # Who asks the same question is given the same plan, and sees it from then on.
        assert (await client.post("/plan/train", json=train(), headers=second)).json()["plan_id"] == plan_id
        assert (await client.get(f"/plans/{plan_id}", headers=second)).status_code == 200


async def test_keys_see_and_cancel_their_own_jobs(database: Database, database_url: str):
    first, second = await a_key(database, "quantize"), await a_key(database, "quantize")
    async with served(database_url) as client:
        job_id = (await client.post("/quantize", json=JOB, headers=first)).json()["job"]["job_id"]
        assert (await client.get(f"/jobs/{job_id}", headers=second)).status_code == 404
        assert (await client.get(f"/jobs/{job_id}/events", headers=second)).status_code == 404
        assert (await client.post(f"/jobs/{job_id}/cancel", headers=second)).status_code == 404
        assert (await client.get("/jobs", headers=second)).json()["items"] == []
        assert (await client.post(f"/jobs/{job_id}/cancel", headers=first)).json()["state"] == "cancelled"


async def test_two_keys_may_choose_the_same_idempotency_key(database: Database, database_url: str):
    keys = [await a_key(database, "quantize") | {"idempotency-key": "one"} for _ in range(2)]
    async with served(database_url) as client:
        made = [(await client.post("/quantize", json=JOB, headers=key)).json()["job"]["job_id"] for key in keys * 2]
    assert made[0] == made[2] != made[1] == made[3]


async def test_metrics_are_for_administrators_and_for_this_machine(database: Database, database_url: str):
    plan, admin = await a_key(database, "plan"), await a_key(database, "admin")
    async with served(database_url) as client:
        assert (await client.get("/metrics", headers=plan)).status_code == 403
        assert (await client.get("/metrics", headers=admin)).status_code == 200
    async with served(database_url, address=("127.0.0.1", 40_000)) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/plans")).status_code == 401


async def test_where_clients_show_certificates_admission_needs_no_key(database_url: str, tmp_path: Path):
    files = {name: tmp_path / name for name in ("tls_certificate_file", "tls_key_file", "tls_client_ca_file")}
    async with served(database_url, **files) as client:
        assert (await client.post("/admission/validate", json={})).status_code == 400
        assert (await client.get("/plans")).status_code == 401
        assert "strict-transport-security" in (await client.get("/healthz")).headers


@pytest.mark.parametrize("shown", ["Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer plimsoll_x", "Bearer \xff"])
async def test_what_is_no_key_is_refused_even_where_none_is_needed(database_url: str, shown: str):
    headers = {"authorization": shown.encode("latin-1")}
    async with served(database_url, host="127.0.0.1") as client:
        assert (await client.get("/plans", headers=headers)).status_code == 401
        assert (await client.get("/healthz", headers=headers)).status_code == 200


async def test_too_many_requests_are_told_when_to_come_back(database: Database, database_url: str):
    first, second = await a_key(database, "plan"), await a_key(database, "plan")
    # A thousandth of a request a second, and one at once: the second one comes a thousand seconds too early.
    async with served(database_url, key_requests_per_second=0.001) as client:
        assert (await client.get("/formats", headers=first)).status_code == 200
        refused = await client.get("/formats", headers=first)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert 900 < int(refused.headers["retry-after"]) <= 1000
        assert (await client.get("/formats", headers=second)).status_code == 200


async def test_strangers_share_the_rate_of_their_address_and_this_machine_has_none(database_url: str):
    rate = {"allow_anonymous": True, "key_requests_per_second": 0.001}
    async with served(database_url, **rate) as client:
        assert [(await client.get("/formats")).status_code for _ in range(2)] == [200, 429]
        assert (await client.get("/healthz")).status_code == 200
    async with served(database_url, address=("::1", 1), **rate) as client:
        assert [(await client.get("/formats")).status_code for _ in range(2)] == [200, 200]


async def test_wrong_keys_of_an_address_are_refused_beyond_a_rate_and_a_right_one_is_not(
    database: Database, database_url: str
):
    right = await a_key(database, "plan")
    wrong = {"authorization": f"{right['authorization'][:-1]}!"}
    async with served(database_url, wrong_keys_per_minute=2) as client:
        answers = [await client.get("/formats", headers=wrong) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [401, 401, 429]
        assert answers[2].json()["code"] == "too-many-wrong-keys"
        assert 0 < int(answers[2].headers["retry-after"]) <= 30
        assert (await client.get("/formats", headers=right)).status_code == 200
        # What shows no key is no guess.
        assert (await client.get("/formats")).status_code == 401


async def test_a_key_with_as_many_streams_as_it_may_hold_is_refused_and_others_are_not(
    database: Database, database_url: str
):
    first, second = await a_key(database, "quantize"), await a_key(database, "quantize")
    async with served(database_url, key_streams=1) as client:
        jobs = [
            (await client.post("/quantize", json=JOB, headers=key)).json()["job"]["job_id"] for key in (first, second)
        ]
        own, others = (f"/jobs/{job_id}" for job_id in jobs)
        streams = {asyncio.ensure_future(client.get(f"{own}/events", headers=first)) for _ in range(2)}
        # One of them has it, and goes on for as long as the job waits.
        (refused,), (held,) = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        assert (refused.result().status_code, refused.result().json()["code"]) == (429, "stream-limit-reached")
        assert int(refused.result().headers["retry-after"]) > 0
        assert (await client.get(own, headers=first)).status_code == 200
        await client.post(f"{others}/cancel", headers=second)
        assert (await client.get(f"{others}/events", headers=second)).status_code == 200
        await client.post(f"{own}/cancel", headers=first)
        assert (await held).status_code == 200
        assert (await client.get(f"{own}/events", headers=first)).status_code == 200


@asynccontextmanager
async def silent_hub() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Yield the address of a hub that answers nothing until it is closed, and what is set once it was asked."""
    asked, closing = asyncio.Event(), asyncio.Event()

    async def keep_waiting(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await closing.wait()
        writer.close()

    server = await asyncio.start_server(keep_waiting, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        closing.set()
        server.close()


async def test_a_key_beyond_its_share_of_the_threads_is_refused_and_another_is_answered(
    database: Database, database_url: str
):
    greedy, other = await a_key(database, "plan"), await a_key(database, "plan")
    limits = {"key_planning_threads": 1, "key_waiting_searches": 0, "hub_timeout_seconds": 300}
    async with AsyncExitStack() as closing:
        address, asked = await closing.enter_async_context(silent_hub())
        async with served(database_url, hub_url=address, **limits) as client:
            slow = train(model={"hub": "someone/something"})
            under_way = asyncio.ensure_future(client.post("/plan/train", json=slow, headers=greedy))
            await asked.wait()
            refused = await client.post("/plan/train", json=train(), headers=greedy)
            assert (refused.status_code, refused.json()["code"]) == (429, "search-limit-reached")
            assert int(refused.headers["retry-after"]) > 0
            # Before the body is looked at.
            assert (await client.post("/plan/infer", content=b"{", headers=greedy)).status_code == 429
            assert (await client.get("/formats", headers=greedy)).status_code == 200
            assert (await client.post("/plan/train", json=train(), headers=other)).status_code == 200
            await closing.aclose()
            assert (await under_way).status_code == 502


async def test_a_key_has_so_many_unfinished_jobs_and_no_more(database: Database, database_url: str):
    key = await a_key(database, "quantize")
    async with served(database_url, key_job_limit=1) as client:
        first = await client.post("/quantize", json=JOB, headers=key)
        refused = await client.post("/quantize", json=JOB, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (429, "job-quota-reached")
        assert int(refused.headers["retry-after"]) > 0
        await client.post(f"/jobs/{first.json()['job']['job_id']}/cancel", headers=key)
        assert (await client.post("/quantize", json=JOB, headers=key)).status_code == 202
