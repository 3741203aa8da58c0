"""A site's own measurements, sent as a client sends them, and the plans that follow."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plimsoll.api import examples
from tests.api.questions import infer, train

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


@pytest.mark.parametrize("example", examples.CALIBRATION.values(), ids=list(examples.CALIBRATION))
async def test_measurements_shown_as_an_example_are_foretold_better_by_their_own_fit(
    client: httpx.AsyncClient, example: dict[str, Any]
):
    report = (await put(client, "/hardware/h100-sxm-80gb/calibration", **example["value"])).json()
    for fit in (*([report] if report["observations"] else []), *report["serving"]):
        before, after, left_out = (fit[f"error_{name}"]["mean_absolute"] for name in ("shipped", "fitted", "left_out"))
        assert after < before
        assert left_out < before


async def served(client: httpx.AsyncClient, **serving: Any) -> dict[str, Any]:
    asked = {"concurrency": 8, **serving}
    response = await client.post("/plan/infer", json=infer(hardware={"gpu": "a100-sxm-80gb", "gpus": 1}, serving=asked))
    assert response.status_code == 200, response.text
    return response.json()


async def test_measured_deployments_are_fitted_and_later_serving_plans_rest_on_them(client: httpx.AsyncClient):
    before, many = await served(client), await served(client, concurrency=64)
    slow = [
        {"plan_id": each["plan_id"], "tpot_seconds": 1.5 * each["plan"]["performance"]["tpot_seconds"]}
        for each in (before, many)
    ]
    report = (await put(client, serving=slow)).json()
    (engine,) = report["serving"]
    assert engine["engine"] == "vllm"
    assert engine["error_fitted"]["mean_absolute"] < engine["error_shipped"]["mean_absolute"]
    assert engine["error_left_out"]["mean_absolute"] < engine["error_shipped"]["mean_absolute"]
    assert (await client.get(PATH)).json() == report
    after = await served(client)
    assert after["calibration_revision"] == report["revision"]
    assert after["plan"]["performance"]["tpot_seconds"] > before["plan"]["performance"]["tpot_seconds"]
    assert any(report["revision"] in line for line in after["assumptions"])
    other = await served(client, engine="sglang")
    assert other["calibration_revision"] == "none"
    assert (await client.delete(PATH)).status_code == 204
    assert (await served(client))["plan_id"] == before["plan_id"]


async def test_benchmarks_of_kernels_leave_serving_plans_alone(client: httpx.AsyncClient):
    await put(client, microbenchmarks=[MEMORY])
    assert (await served(client))["calibration_revision"] == "none"
    await client.delete(PATH)


async def test_a_training_plan_is_no_measured_deployment(client: httpx.AsyncClient):
    trained = await plan(client, framework="fsdp2")
    response = await put(client, serving=[{"plan_id": trained["plan_id"], "tpot_seconds": 0.01}])
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/serving/0/plan_id"]


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

SERVED = examples.CALIBRATION["a deployment under two loads"]["value"]["serving"][0]["deployment"]


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
        ({"microbenchmarks": [{"kind": "disk"}]}, "/microbenchmarks/0/kind"),
        ({"measurements": [{"step_seconds": 1.0}]}, "/measurements/0"),
        ({"serving": [{"tpot_seconds": 0.01}]}, "/serving/0"),
        ({"serving": [{"deployment": SERVED}]}, "/serving/0"),
        ({"serving": [{"deployment": SERVED, "tpot_seconds": 9.0}]}, "/serving/0/tpot_seconds"),
        ({"serving": [{"deployment": {**SERVED, "serving": {}}, "tpot_seconds": 0.01}]}, "/serving/0/deployment"),
        ({"serving": [{"deployment": {**SERVED, "layout": {"tensor_parallel": 3}}, "tpot_seconds": 0.01}]},
         "/serving/0/deployment/layout"),
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
    assert {error["pointer"] for error in response.json()["errors"]} == {pointer}


async def test_a_plan_of_another_gpu_is_no_measurement_of_this_one(client: httpx.AsyncClient):
    other = await plan(client, framework="fsdp2")
    body = {"measurements": [{"plan_id": other["plan_id"], "step_seconds": 1.0}]}
    response = await put(client, "/hardware/h100-sxm-80gb/calibration", **body)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/measurements/0/plan_id"]


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


LOVELACE = "/hardware/l40s-48gb/calibration"


async def report_speed(client: httpx.AsyncClient, **body: Any) -> int:
    response = await client.post("/measurements", json=body)
    assert response.status_code == 201, response.text
    return int(response.json()["measurement_ids"][0])


async def l40s_plan(client: httpx.AsyncClient, gpus: int, **parts: Any) -> dict[str, Any]:
    hardware = {"gpu": "l40s-48gb", "gpus": gpus, **parts}
    asked = train(model="qwen3-0.6b", framework="fsdp2", hardware=hardware)
    return (await client.post("/plan/train", json=asked)).json()


async def test_a_record_without_speeds_of_the_gpu_is_refused(client: httpx.AsyncClient):
    response = await put(client, "/hardware/t4-16gb/calibration", from_record=True)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/from_record"]


async def test_the_record_is_fitted_and_rows_held_out_say_how_well(client: httpx.AsyncClient):
    used = []
    for gpus in (4, 8):
        made = await l40s_plan(client, gpus)
        seconds = 1.3 * made["plan"]["step"]["seconds"]
        used.append(await report_speed(client, plan_id=made["plan_id"], step_seconds=seconds))
    lone = await report_speed(client, framework="fsdp2", gpu="l40s-48gb", model="m", step_seconds=1.0)
    faster = await l40s_plan(client, 8, override={"memory_bytes_per_second": 9e11})
    other = await report_speed(client, plan_id=faster["plan_id"], tokens_per_second=1e4)
    report = (await put(client, LOVELACE, from_record=True)).json()
    assert report["record"]["used"] == used[::-1]
    assert [each["measurement_id"] for each in report["record"]["unused"]] == [lone, other]
    # Every step took 1.3 times its estimate: 1 / 1.3 - 1 = -23 % before.
    assert report["error_shipped"]["mean_absolute"] == pytest.approx(1 - 1 / 1.3, rel=0.02)
    assert report["error_fitted"]["mean_absolute"] < report["error_shipped"]["mean_absolute"]
    assert report["error_left_out"]["mean_absolute"] < report["error_shipped"]["mean_absolute"]
    assert (await client.get(LOVELACE)).json() == report
    await client.delete(LOVELACE)


async def test_an_absurd_speed_on_record_is_named_by_its_number(client: httpx.AsyncClient):
    made = await l40s_plan(client, 4)
    number = await report_speed(client, plan_id=made["plan_id"], step_seconds=1000 * made["plan"]["step"]["seconds"])
    response = await put(client, LOVELACE, from_record=True)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [f"/from_record/{number}/step_seconds"]
    await client.delete(f"/measurements/{number}")


async def test_a_serving_run_on_record_is_fitted_where_it_was_timed(client: httpx.AsyncClient):
    hardware = {"gpu": "l4-24gb", "gpus": 1}
    asked = infer(model="qwen3-0.6b", hardware=hardware, serving={"concurrency": 8})
    made = (await client.post("/plan/infer", json=asked)).json()
    seconds = 1.2 * made["plan"]["performance"]["tpot_seconds"]
    timed = await report_speed(client, plan_id=made["plan_id"], tpot_seconds=seconds)
    rate = await report_speed(client, plan_id=made["plan_id"], output_tokens_per_second=10.0)
    report = (await put(client, "/hardware/l4-24gb/calibration", from_record=True)).json()
    assert report["record"]["used"] == [timed]
    assert [each["measurement_id"] for each in report["record"]["unused"]] == [rate]
    assert [engine["engine"] for engine in report["serving"]] == ["vllm"]
    await client.delete("/hardware/l4-24gb/calibration")
    await client.delete(f"/measurements/{timed}")
    refused = await put(client, "/hardware/l4-24gb/calibration", from_record=True)
    assert "None of 1 speeds" in refused.json()["detail"]
