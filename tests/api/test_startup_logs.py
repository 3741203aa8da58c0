"""Start-up logs of serving engines: read, set beside the plan, and learned from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from plimsoll.planners.ground.units import GIB
from tests.api.questions import infer, train

START = {
    "max_model_len": 8192, "engine_version": "0.19", "gpu_memory_utilization": 0.95, "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024, "input_tokens": 512, "output_tokens": 512,
}  # fmt: skip


def question(**serving: Any) -> dict[str, Any]:
    """Return the start that the log below is of."""
    return {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "serving": {**START, **serving},
        "layout": {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1},
    }


def log(available: str = "58.11", weights: str = "14.99", **settings: str) -> str:
    """Return what vLLM 0.19 prints, with figures of Llama-3.1-8B on an H100."""
    said = {"tensor_parallel_size": "1", "max_seq_len": "8192", **settings}
    config = ", ".join(f"{name}={value}" for name, value in said.items())
    return (
        "INFO [utils.py:233] non-default args: {'gpu_memory_utilization': 0.95, 'max_num_seqs': 1024}\n"
        "INFO [scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
        "INFO [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: "
        f"model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, {config}, kv_cache_dtype=auto\n"
        f"INFO [gpu_model_runner.py:4700] Model loading took {weights} GiB memory and 3.2 seconds\n"
        f"INFO [gpu_worker.py:391] Available KV cache memory: {available} GiB\n"
        "INFO [kv_cache_utils.py:1307] GPU KV cache size: 476,000 tokens\n"
    )


async def planned(client: httpx.AsyncClient, **serving: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.post("/plan/infer", json=question(**serving))).json()
    return answer


async def reported(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/measurements", json=body)
    assert response.status_code == 201, response.text
    report: dict[str, Any] = response.json()
    return report


async def test_a_log_is_set_beside_its_plan(client: httpx.AsyncClient):
    plan = await planned(client)
    report = await reported(client, {"plan_id": plan["plan_id"], "log": log()})
    by_name = {entry["quantity"]: entry for entry in report["comparisons"]}
    assert by_name["kv_available_bytes"]["measured"] == round(58.11 * GIB)
    assert by_name["weights_bytes"]["measured"] == round(14.99 * GIB)
    assert by_name["kv_tokens"]["relative_error"] == pytest.approx(0, abs=0.01)
    assert report["log"]["engine_version"] == "0.19"


async def test_what_a_log_shows_decides_later_plans_and_they_say_so(client: httpx.AsyncClient):
    before = await planned(client, engine_version="0.17")
    # Two GiB less are left than is planned: they are found outside torch.
    available = before["plan"]["kv"]["available_bytes"] / GIB - 2
    weights = before["plan"]["memory"]["items"]["weights"] / GIB
    text = log(available=f"{available:.4f}", weights=f"{weights:.4f}").replace("v0.19", "v0.17")
    report = await reported(client, {"plan_id": before["plan_id"], "log": text, "source": "rack 7"})
    assert report["learned"]["single_offset_bytes"] == pytest.approx(2 * GIB, abs=GIB / 1000)
    after = await planned(client, engine_version="0.17")
    assert after["plan_id"] != before["plan_id"]
    assert after["calibration_revision"] == report["learned"]["revision"] != before["calibration_revision"]
    assert after["plan"]["kv"]["available_bytes"] == pytest.approx(available * GIB, rel=1e-3)
    assert after["plan"]["learned"]["revision"] == report["learned"]["revision"]
    assert any("rack 7" in note and "+2.00 GiB outside torch" in note for note in after["assumptions"])


async def test_a_report_of_the_corrected_plan_corrects_it_no_further(client: httpx.AsyncClient):
    plan = await planned(client)
    text = log(available=f"{plan['plan']['kv']['available_bytes'] / GIB - 1:.4f}")
    first = await reported(client, {"plan_id": plan["plan_id"], "log": text})
    again = await planned(client)
    second = await reported(client, {"plan_id": again["plan_id"], "log": text})
    for name in ("weights_factor", "single_offset_bytes"):
        assert second["learned"][name] == pytest.approx(first["learned"][name], rel=1e-3)


async def test_another_version_or_weight_format_learns_nothing_of_it(client: httpx.AsyncClient):
    plan = await planned(client)
    await reported(client, {"plan_id": plan["plan_id"], "log": log(available="57.00")})
    for change in ({"engine_version": "0.18"}, {"weights": "fp8"}):
        assert (await planned(client, **change))["plan"]["learned"] is None


async def test_a_log_without_a_plan_is_planned(client: httpx.AsyncClient):
    report = await reported(client, {"gpu": "H100", "log": log()})
    plan = (await client.get(f"/plans/{report['plan_id']}")).json()
    assert plan["plan"]["settings"]["engine_version"] == "0.19"
    assert plan["plan"]["settings"]["max_model_len"] == 8192
    assert all(comparison["predicted"] is not None for comparison in report["comparisons"])


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"log": log(tensor_parallel_size="2")}, "/log"),
        ({"log": log(max_seq_len="4096")}, "/log"),
        ({"log": log().replace("v0.19.0", "v0.18.0")}, "/log"),
        ({"log": log().replace("0.95", "0.90")}, "/log"),
        ({"log": "nothing here"}, "/log"),
        ({"log": log(), "kv_tokens": 5}, "/kv_tokens"),
        ({"log": ""}, "/log"),
    ],
)
async def test_a_log_of_another_start_or_of_none_is_refused(client: httpx.AsyncClient, changes, pointer):
    plan = await planned(client)
    response = await client.post("/measurements", json={"plan_id": plan["plan_id"], **changes})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"log": log()}, ""),
        ({"gpu": "h100", "log": log().replace("meta-llama/Llama-3.1-8B-Instruct", "/models/mine")}, "/model"),
        ({"gpu": "h100", "log": log().replace("(v0.19.0)", "(vNext)")}, "/engine_version"),
        ({"gpu": "h100", "framework": "sglang", "log": log()}, "/framework"),
        ({"gpu": "h100", "log": log(quantization="compressed-tensors")}, "/weights"),
        ({"gpu": "h100", "log": log().replace("=auto", "=turbo")}, "/kv_cache"),
        ({"framework": "vlm", "gpu": "h100", "model": "mine", "kv_tokens": 1}, "/framework"),
    ],
)
async def test_what_a_log_leaves_open_is_asked_for(client: httpx.AsyncClient, body, pointer):
    response = await client.post("/measurements", json=body)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_an_unknown_framework_is_refused_with_those_that_are_known(client: httpx.AsyncClient):
    body = {"framework": "tensorflow", "gpu": "h100", "model": "mine", "peak_bytes": 1}
    [error] = (await client.post("/measurements", json=body)).json()["errors"]
    assert "vllm" in error["detail"]
    assert "megatron" in error["detail"]


async def test_a_log_cannot_be_of_a_training_plan(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train())).json()["plan_id"]
    response = await client.post("/measurements", json={"plan_id": plan_id, "log": log()})
    assert [error["pointer"] for error in response.json()["errors"]] == ["/plan_id"]


async def test_a_log_far_from_its_plan_is_kept_and_teaches_nothing(client: httpx.AsyncClient):
    plan = (await client.post("/plan/infer", json=infer())).json()
    weights = 10 * plan["plan"]["memory"]["items"]["weights"]
    report = await reported(client, {"plan_id": plan["plan_id"], "weights_bytes": weights})
    assert report["learned"] is None
    assert "10.00 times" in report["not_learned"]


async def test_a_card_with_figures_of_its_own_teaches_nothing_of_the_catalogues(client: httpx.AsyncClient):
    hardware = {"gpu": "h100-sxm-80gb", "gpus": 1, "override": {"memory_bytes": 70 * GIB}}
    plan = (await client.post("/plan/infer", json=infer(hardware=hardware))).json()
    report = await reported(client, {"plan_id": plan["plan_id"], "kv_tokens": 1000})
    assert "catalogue" in report["not_learned"]


async def test_measured_latencies_scale_later_ones(client: httpx.AsyncClient):
    asked = infer(serving={"concurrency": 1})
    plan = (await client.post("/plan/infer", json=asked)).json()
    token = plan["plan"]["performance"]["tpot_seconds"]
    await reported(client, {"plan_id": plan["plan_id"], "tpot_seconds": 2 * token})
    again = (await client.post("/plan/infer", json=asked)).json()
    assert again["plan"]["performance"]["tpot_seconds"] == pytest.approx(2 * token)


async def test_a_report_that_is_taken_back_teaches_no_longer(client: httpx.AsyncClient):
    before = await planned(client, engine_version="0.16")
    available = before["plan"]["kv"]["available_bytes"] / GIB - 2
    weights = before["plan"]["memory"]["items"]["weights"] / GIB
    text = log(available=f"{available:.4f}", weights=f"{weights:.4f}").replace("v0.19", "v0.16")
    report = await reported(client, {"plan_id": before["plan_id"], "log": text})
    assert (await planned(client, engine_version="0.16"))["plan_id"] != before["plan_id"]
    (number,) = report["measurement_ids"]
    assert (await client.delete(f"/measurements/{number}")).status_code == 204
    after = await planned(client, engine_version="0.16")
    assert after["plan_id"] == before["plan_id"]
    assert after["plan"]["learned"] is None
    again = await client.delete(f"/measurements/{number}")
    assert (again.status_code, again.json()["type"]) == (404, "urn:plimsoll:problem:measurement-not-found")


@pytest.mark.parametrize("number", ["0", "-1", "x", str(2**63)])
async def test_a_measurement_is_named_by_its_number(client: httpx.AsyncClient, number: str):
    assert (await client.delete(f"/measurements/{number}")).status_code == 422
