"""A site's own measurements, sent as a client sends them, and the plans that follow."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from api import examples
from tests.api.questions import train

PATH = "/hardware/a100-sxm-80gb/calibration"
# An A100 moves 2,039 GB/s; 80 % of it ships.
MEMORY = {"kind": "memory", "bytes_per_second": 1.5e12}


async def put(client: httpx.AsyncClient, path: str = PATH, **body: Any) -> httpx.Response:
    return await client.put(path, json=body)


async def plan(client: httpx.AsyncClient, **parts: Any) -> dict[str, Any]:
    response = await client.post("/plan/train", json=train(hardware={"gpu": "a100-sxm-80gb", "gpus": 8}, **parts))
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_calibration_is_fitted_shown_used_and_forgotten(client: httpx.AsyncClient):
    before = await plan(client, framework="fsdp2")
    assert before["calibration_revision"] == "none"
    slow = {"plan_id": before["plan_id"], "step_seconds": 1.5 * before["plan"]["step"]["seconds"]}
    fitted = await put(client, measurements=[slow], microbenchmarks=[MEMORY])
    assert fitted.status_code == 200, fitted.text
    report = fitted.json()
    assert report["error_fitted"]["mean_absolute"] < report["error_shipped"]["mean_absolute"]
    assert (await client.get(PATH)).json() == report
    after = await plan(client, framework="fsdp2")
    assert after["calibration_revision"] == report["revision"]
    assert after["plan_id"] != before["plan_id"]
    assert after["plan"]["step"]["seconds"] > before["plan"]["step"]["seconds"]
    assert any(report["revision"] in line for line in after["assumptions"])
    assert (await client.delete(PATH)).status_code == 204
    again = await plan(client, framework="fsdp2")
    assert again["plan_id"] == before["plan_id"]


async def test_a_gpu_without_a_calibration_says_so(client: httpx.AsyncClient):
    for method in ("GET", "DELETE"):
        response = await client.request(method, "/hardware/l4-24gb/calibration")
        assert (response.status_code, response.json()["code"]) == (404, "calibration-not-found")


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_an_unknown_gpu_is_not_calibrated(client: httpx.AsyncClient, method: str):
    body = {"microbenchmarks": [MEMORY]} if method == "PUT" else None
    response = await client.request(method, "/hardware/h1000000/calibration", json=body)
    assert (response.status_code, response.json()["code"]) == (404, "unknown-gpu")


RUN = examples.CALIBRATION["benchmarks of one node, and one run"]["value"]["measurements"][0]["run"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"microbenchmarks": [{"kind": "memory", "bytes_per_second": 0}]}, "/microbenchmarks/0/bytes_per_second"),
        ({"microbenchmarks": [{"kind": "memory", "bytes_per_second": 2.1e12}]}, "/microbenchmarks/0/bytes_per_second"),
        ({"microbenchmarks": [{"kind": "memory", "bytes_per_second": 1e9}]}, "/microbenchmarks/0/bytes_per_second"),
        (
            {"microbenchmarks": [MEMORY, {**MEMORY, "bytes_per_second": 9e11}]},
            "/microbenchmarks/1/bytes_per_second",
        ),
        ({"microbenchmarks": [{"kind": "attention", "format": "fp8", "flops_per_second": 1e14}]},
         "/microbenchmarks/0/format"),
        ({"microbenchmarks": [{"kind": "disk"}]}, "/microbenchmarks/0"),
        ({"measurements": [{"step_seconds": 1.0}]}, "/measurements/0"),
        ({"measurements": [{"run": RUN, "step_seconds": 1.0, "tokens_per_second": 1.0}]}, "/measurements/0"),
        ({"measurements": [{"run": RUN, "step_seconds": 0.0}]}, "/measurements/0/step_seconds"),
        ({"measurements": [{"run": RUN, "step_seconds": 9e5}]}, "/measurements/0/step_seconds"),
        ({"measurements": [{"run": {**RUN, "framework": "any"}, "step_seconds": 9.0}]},
         "/measurements/0/run/framework"),
        ({"measurements": [{"run": {**RUN, "layout": {"tensor_parallel": 3}}, "step_seconds": 9.0}]},
         "/measurements/0/run/layout/tensor_parallel"),
    ],
)  # fmt: skip
async def test_bad_measurements_are_refused_where_they_stand(client: httpx.AsyncClient, body: Any, pointer: str):
    response = await client.put(PATH, json=body)
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["pointer"] == pointer


async def test_a_plan_of_another_gpu_is_no_measurement_of_this_one(client: httpx.AsyncClient):
    other = await plan(client, framework="fsdp2")
    body = {"measurements": [{"plan_id": other["plan_id"], "step_seconds": 1.0}]}
    response = await put(client, "/hardware/h100-sxm-80gb/calibration", **body)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/measurements/0/plan_id"


async def test_a_plan_that_nobody_stored_is_not_found(client: httpx.AsyncClient):
    response = await put(client, measurements=[{"plan_id": "none", "step_seconds": 1.0}])
    assert (response.status_code, response.json()["code"]) == (404, "plan-not-found")


async def test_measured_peaks_are_compared_and_not_fitted(client: httpx.AsyncClient):
    body = {"measurements": [{"run": RUN, "step_seconds": 25.0, "peak_bytes": 50 * 2**30}]}
    report = (await put(client, **body)).json()
    (peak,) = report["peaks"]
    assert peak["relative_error"] == pytest.approx(peak["predicted_bytes"] / (50 * 2**30) - 1)
    await client.delete(PATH)


async def test_a_gpu_with_other_rates_is_not_the_one_that_was_measured(client: httpx.AsyncClient):
    await put(client, microbenchmarks=[MEMORY])
    hardware = {"gpu": "a100-sxm-80gb", "gpus": 8, "override": {"memory_bytes_per_second": 3e12}}
    answer = (await client.post("/plan/train", json=train(hardware=hardware))).json()
    assert answer["calibration_revision"] == "none"
    await client.delete(PATH)
