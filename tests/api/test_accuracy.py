"""Reports from real runs, and how far predictions were off."""

from __future__ import annotations

import httpx
import pytest

from tests.api.questions import infer, train


async def test_a_report_is_set_beside_its_plan(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train())).json()
    peak_bytes, seconds = plan["plan"]["memory"]["peak_bytes"], plan["plan"]["step"]["seconds"]
    body = {"plan_id": plan["plan_id"], "peak_bytes": 2 * peak_bytes, "step_seconds": seconds / 2, "source": "me"}
    report = (await client.post("/measurements", json=body)).json()
    # Half of what was measured: -50 %; twice: +100 %.
    assert [entry["relative_error"] for entry in report["comparisons"]] == pytest.approx([-0.5, 1.0])
    accuracy = (await client.get("/accuracy")).json()
    speed, size = accuracy["points"]
    assert (size["quantity"], size["predicted"], size["measured"]) == ("peak_bytes", peak_bytes, 2 * peak_bytes)
    assert (speed["level"], speed["quantity"]) == ("run-speed", "step_seconds")
    groups = {group["level"]: group for group in accuracy["items"]}
    assert groups["run"]["mean_relative_error"] == pytest.approx(-0.5)
    assert groups["run-speed"]["worst_absolute_relative_error"] == pytest.approx(1.0)


async def test_a_report_of_a_serving_run_is_set_beside_its_plan(client: httpx.AsyncClient):
    plan = (await client.post("/plan/infer", json=infer())).json()
    body = {"plan_id": plan["plan_id"], "kv_tokens": plan["plan"]["kv"]["tokens"]}
    report = (await client.post("/measurements", json=body)).json()
    assert report["comparisons"][0]["relative_error"] == 0.0


async def test_a_report_without_a_plan_is_kept_without_an_error(client: httpx.AsyncClient):
    body = {"framework": "ddp", "gpu": "h100-sxm-80gb", "model": "mine", "peak_bytes": 10**10}
    response = await client.post("/measurements", json=body)
    assert response.status_code == 201
    assert response.json()["comparisons"][0]["relative_error"] is None
    accuracy = (await client.get("/accuracy")).json()
    assert "ddp" not in [group["framework"] for group in accuracy["items"]]
    assert "ddp" not in [point["framework"] for point in accuracy["points"]]


async def test_a_report_of_another_run_or_of_nothing_planned_is_refused(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train())).json()["plan_id"]
    for body, pointer in (
        ({"plan_id": plan_id, "gpu": "a100-sxm-80gb", "peak_bytes": 1}, "/gpu"),
        ({"plan_id": plan_id, "kv_tokens": 1}, "/kv_tokens"),
    ):
        response = await client.post("/measurements", json=body)
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == pointer
    assert (await client.post("/measurements", json={"plan_id": "none", "peak_bytes": 1})).status_code == 404


async def test_a_report_may_name_the_gpu_and_the_model_by_alias(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train(model="llama-3.2-1b"))).json()
    body = {"plan_id": plan["plan_id"], "gpu": "H100", "model": "Llama-3.2-1B", "step_seconds": 1.0}
    assert (await client.post("/measurements", json=body)).status_code == 201
    groups = (await client.get("/accuracy")).json()["items"]
    assert [group["gpu"] for group in groups if group["level"] == "run-speed"] == ["h100-sxm-80gb"]
