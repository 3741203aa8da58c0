"""Whatever reads a stored plan reads those that earlier versions stored."""

from __future__ import annotations

from dataclasses import fields

import httpx
import pytest

from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.answers import InferPlanBody, TrainPlanBody
from tests.service.plans.earlier_versions import EARLIER

NAMES = [name for name, _ in EARLIER]


@pytest.fixture
async def plan(request: pytest.FixtureRequest, module_database_url: str) -> StoredPlan:
    """Return a plan that an earlier version stored, and the database has."""
    async with Database(module_database_url) as opened:
        await opened.plans.put(request.param)
    return request.param


@pytest.mark.parametrize("plan", [each for _, each in EARLIER], ids=NAMES, indirect=True)
async def test_every_route_that_reads_it_answers(client: httpx.AsyncClient, plan: StoredPlan):
    address = f"/plans/{plan.plan_id}"
    body = (await client.get(address)).json()
    assert {field.name for field in fields(TrainPlanBody if plan.kind == "train" else InferPlanBody)} <= body.keys()
    text = await client.get(f"{address}?format=text")
    assert (text.status_code, plan.plan_id in text.text) == (200, True)
    assert (await client.get(f"{address}/question")).json()["request"] == plan.request
    listed = (await client.get("/plans?limit=100")).json()["items"]
    assert plan.plan_id in [item["plan_id"] for item in listed]
    for name in body["artifacts"]:
        assert (await client.get(f"{address}/artifacts/{name}")).status_code == 200


@pytest.mark.parametrize("plan", [each for _, each in EARLIER], ids=NAMES, indirect=True)
async def test_it_is_measured_against(client: httpx.AsyncClient, plan: StoredPlan):
    measured = {"peak_bytes": 10**9} if plan.kind == "train" else {"weights_bytes": 10**9, "tpot_seconds": 0.01}
    report = {"plan_id": plan.plan_id, "source": "test", **measured}
    answer = await client.post("/measurements", json=report)
    assert answer.status_code == 201, answer.text
    assert [comparison["predicted"] > 0 for comparison in answer.json()["comparisons"]] == [True] * (len(report) - 2)
    assert (await client.get("/accuracy")).status_code == 200


@pytest.mark.parametrize("plan", [each for _, each in EARLIER], ids=NAMES, indirect=True)
@pytest.mark.parametrize("level", ["count", "trace", "device"])
async def test_its_proof_is_queued_or_refused_in_words(client: httpx.AsyncClient, plan: StoredPlan, level: str):
    answer = await client.post(f"/plans/{plan.plan_id}/validate", json={"level": level})
    assert answer.status_code in ((202,) if level == "count" else (202, 422, 501)), answer.text
    if answer.status_code == 202:
        await client.post(f"/jobs/{answer.json()['job_id']}/cancel")


async def test_a_card_is_calibrated_with_runs_of_earlier_plans(client: httpx.AsyncClient, module_database_url: str):
    plans = [each for _, each in EARLIER if each.kind == "train"]
    async with Database(module_database_url) as opened:
        for plan in plans:
            await opened.plans.put(plan)
    for plan in plans:
        report = {"plan_id": plan.plan_id, "source": "test", "step_seconds": 1.0}
        assert (await client.post("/measurements", json=report)).status_code == 201
    answer = await client.put("/hardware/h100-sxm-80gb/calibration", json={})
    assert answer.status_code in (200, 422), answer.text
