"""HEAD answers what GET does, without the body."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from plimsoll.api.contract import EVENTS_PATH
from tests.api.questions import train
from tests.api.test_door import asked, door_to, sent_through


async def test_head_is_answered_wherever_get_is(client: httpx.AsyncClient, app: FastAPI):
    plan_id = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()["plan_id"]
    job_id = (await client.post(f"/plans/{plan_id}/validate", json={"level": "count"})).json()["job_id"]
    values = {"plan_id": plan_id, "job_id": job_id, "name": "torchrun", "section": "jobs", "digest": "0"}
    paths = [route.path for route in app.state.routes if "GET" in route.methods]
    assert len(paths) >= 20
    for path in (*paths, "/openapi.json", "/assets/0/page.css"):
        asked = path.replace("{id:path}", "llama-3.1-8b").replace("{id}", "h100").format(**values)
        if path == EVENTS_PATH:
            continue
        head, whole = await client.head(asked), await client.get(asked)
        assert head.status_code == whole.status_code, asked
        assert head.content == b""
        if path != "/metrics":
            assert head.headers["content-length"] == whole.headers["content-length"], asked


async def test_a_stream_of_events_is_not_awaited(client: httpx.AsyncClient):
    asked = train(framework="fsdp2", validate="count")
    job_id = (await client.post("/plan/train", json=asked)).json()["validation"]["job_id"]
    # No worker runs here, so that the stream would not end.
    head = await asyncio.wait_for(client.head(f"/jobs/{job_id}/events"), timeout=5)
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert head.content == b""


@pytest.mark.parametrize(("path", "allowed"), [("/plans", "GET, HEAD"), ("/quantize", "POST")])
async def test_allow_names_head_beside_get_alone(client: httpx.AsyncClient, path: str, allowed: str):
    refused = await client.delete(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    if "HEAD" not in allowed:
        assert (await client.head(path)).status_code == 405


async def test_head_is_counted_as_itself(client: httpx.AsyncClient):
    await client.head("/formats")
    counted = (await client.get("/metrics")).text
    assert 'method="HEAD",route="/formats",status="200"' in counted


async def test_an_error_of_the_app_is_not_taken_for_the_end_of_a_stream():
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await sent_through(door_to(failing), asked("HEAD"))
