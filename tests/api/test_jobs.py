"""Jobs: queued once, seen, cancelled, followed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from plimsoll.service.persistence.records import Progress
from tests.api.questions import train

QUANTIZE: dict[str, Any] = {"model": "llama-3.2-1b", "scheme": "nf4", "double_quantization": True}


async def queued(client: httpx.AsyncClient, **headers: str) -> dict[str, Any]:
    response = await client.post("/quantize", json=QUANTIZE, headers=headers)
    assert response.status_code == 202
    body: dict[str, Any] = response.json()
    return body


async def test_a_quantization_is_sized_at_once_and_queued(client: httpx.AsyncClient):
    body = await queued(client)
    # Llama-3.2-1B: 1,235,814,400 parameters of two bytes.
    assert body["estimate"]["original_bytes"] == 2_471_628_800
    assert body["estimate"]["quantized_bytes"] < body["estimate"]["original_bytes"]
    assert body["job"]["kind"] == "quantize"
    assert body["job"]["progress"] == {"done": 0, "total": 0, "unit": "", "message": ""}
    job = (await client.get(f"/jobs/{body['job']['job_id']}")).json()
    assert job == {**body["job"], "estimate": body["estimate"]}
    assert (await client.get("/jobs")).json()["items"] == [body["job"]]


async def test_the_same_key_makes_one_job_and_another_request_under_it_none(client: httpx.AsyncClient):
    first, second = [await queued(client, **{"idempotency-key": "key-1"}) for _ in range(2)]
    assert first["job"]["job_id"] == second["job"]["job_id"]
    other = await client.post("/quantize", json={**QUANTIZE, "seed": 1}, headers={"idempotency-key": "key-1"})
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency-conflict"


async def test_a_queued_job_is_named_by_location_and_a_replayed_one_is_marked(client: httpx.AsyncClient):
    headers = {"idempotency-key": "key-2"}
    first, second = [await client.post("/quantize", json=QUANTIZE, headers=headers) for _ in range(2)]
    job_id = first.json()["job"]["job_id"]
    assert first.headers["location"] == second.headers["location"] == f"/jobs/{job_id}"
    assert (await client.get(first.headers["location"])).json()["job_id"] == job_id
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"


async def test_a_replayed_proof_is_marked_wherever_it_was_asked_for(client: httpx.AsyncClient):
    asked = train(framework="fsdp2", validate="count")
    headers = {"idempotency-key": "key-3"}
    planned = [await client.post("/plan/train", json=asked, headers=headers) for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in planned] == [None, "true"]
    address = f"/plans/{planned[0].json()['plan_id']}/validate"
    proofs = [await client.post(address, json={"level": "count"}, headers=headers) for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in proofs] == [None, "true"]
    assert proofs[0].headers["location"] == f"/jobs/{proofs[0].json()['job_id']}"


async def test_a_key_that_is_no_header_is_refused(client: httpx.AsyncClient):
    response = await client.post("/quantize", json=QUANTIZE, headers={"idempotency-key": "a b"})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/idempotency-key"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [({"weights": {"path": "/elsewhere"}}, "/weights/path"), ({"output": "/elsewhere"}, "/output")],
)
async def test_paths_outside_the_roots_are_refused(client: httpx.AsyncClient, change: dict[str, Any], pointer: str):
    response = await client.post("/quantize", json={**QUANTIZE, **change})
    assert response.status_code == 403
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_a_waiting_job_is_cancelled_at_once(client: httpx.AsyncClient):
    job_id = (await queued(client))["job"]["job_id"]
    assert (await client.post(f"/jobs/{job_id}/cancel")).json()["state"] == "cancelled"
    assert (await client.post(f"/jobs/{job_id}/cancel")).json()["state"] == "cancelled"
    assert (await client.post("/jobs/none/cancel")).status_code == 404


async def test_jobs_are_listed_by_state(client: httpx.AsyncClient):
    job_id = (await queued(client))["job"]["job_id"]
    listed = (await client.get("/jobs", params={"state": "queued", "kind": "quantize"})).json()["items"]
    assert job_id in [job["job_id"] for job in listed]
    assert (await client.get("/jobs", params={"state": "failed"})).json()["items"] == []
    assert (await client.get("/jobs", params={"state": "lost"})).status_code == 422
    assert job_id in (await client.get("/jobs?format=text")).text


async def test_a_job_is_a_table_for_people(client: httpx.AsyncClient, app: FastAPI):
    job_id = (await queued(client))["job"]["job_id"]
    await finish(app, job_id)
    text = (await client.get(f"/jobs/{job_id}", headers={"accept": "text/plain"})).text
    assert "succeeded" in text
    assert "1.00 GiB (1,073,741,824 bytes)" in text


async def finish(app: FastAPI, job_id: str) -> None:
    """Do the job as a worker would."""
    jobs = app.state.services.database.jobs
    attempt = await jobs.begin_attempt(job_id, "a worker")
    await jobs.report_progress(job_id, attempt.token, Progress(done=1, total=2, unit="layers"))
    await jobs.finish(job_id, attempt.token, "succeeded", result={"quantized_bytes": 2**30})


def events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Return id, kind and data of each event of a stream."""
    found = []
    for block in text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


async def test_a_stream_tells_all_and_ends_with_the_job(client: httpx.AsyncClient, app: FastAPI):
    job_id = (await queued(client))["job"]["job_id"]
    _, response = await asyncio.gather(finish(app, job_id), client.get(f"/jobs/{job_id}/events"))
    told = events(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [kind for _, kind, _ in told] == ["state", "state", "progress", "result", "state"]
    assert told[-1][2]["state"] == "succeeded"


async def test_a_stream_goes_on_after_the_last_event_that_was_seen(client: httpx.AsyncClient, app: FastAPI):
    job_id = (await queued(client))["job"]["job_id"]
    await finish(app, job_id)
    whole = events((await client.get(f"/jobs/{job_id}/events")).text)
    headers = {"last-event-id": str(whole[2][0])}
    assert events((await client.get(f"/jobs/{job_id}/events", headers=headers)).text) == whole[3:]
    bad = await client.get(f"/jobs/{job_id}/events", headers={"last-event-id": "x"})
    assert bad.status_code == 422
