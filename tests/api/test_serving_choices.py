"""`POST /plan/infer` with formats and limits to choose from, and with a fleet."""

from __future__ import annotations

import httpx
import pytest

from tests.api.questions import infer


async def test_formats_and_limits_may_be_lists(client: httpx.AsyncClient):
    serving = {"weights": ["bf16", "fp8"], "kv_cache": ["bf16", "fp8"], "max_num_seqs": [8, 64]}
    response = await client.post("/plan/infer", json=infer(serving=serving))
    assert response.status_code == 200
    body = response.json()
    assert body["plan"]["settings"]["max_num_seqs"] == 64
    assert {"weights", "kv_cache", "is_on_front", "request_seconds"} <= body["alternatives"][0].keys()


async def test_one_format_in_a_list_is_that_format(client: httpx.AsyncClient):
    listed = (await client.post("/plan/infer", json=infer(serving={"weights": ["fp8"]}))).json()
    plain = (await client.post("/plan/infer", json=infer(serving={"weights": "fp8"}))).json()
    assert listed["plan"] == plain["plan"]


@pytest.mark.parametrize(
    ("serving", "pointer"),
    [
        ({"weights": ["bf16", "fp7"]}, "/serving/weights/1"),
        ({"weights": []}, "/serving/weights"),
        ({"weights": "fp7"}, "/serving/weights"),
        ({"kv_cache": ["bf16"] * 9}, "/serving/kv_cache"),
        ({"max_num_seqs": [0]}, "/serving/max_num_seqs/0"),
        ({"max_num_batched_tokens": "many"}, "/serving/max_num_batched_tokens"),
    ],
)
async def test_a_bad_choice_is_pointed_at(client: httpx.AsyncClient, serving, pointer):
    response = await client.post("/plan/infer", json=infer(serving=serving))
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_a_fleet_is_planned_and_ranked(client: httpx.AsyncClient):
    fleet = [{"gpu": "a100-sxm-80gb", "gpus": 1}, {"gpu": "h100-sxm-80gb", "gpus": 1}]
    answer = await client.post("/plan/infer", json=infer(hardware={"fleet": fleet}))
    assert answer.status_code == 200
    body = answer.json()
    assert [entry["gpu"] for entry in body["fleet"]] == ["h100-sxm-80gb", "a100-sxm-80gb"]
    assert body["summary"].count("h100-sxm-80gb") == 1
    stored = (await client.get("/plans", params={"gpu": "h100-sxm-80gb"})).json()["items"]
    assert body["plan_id"] in [plan["plan_id"] for plan in stored]
    text = (await client.get(f"/plans/{body['plan_id']}", headers={"accept": "text/plain"})).text
    assert "Fleet, best first" in text


async def test_cost_over_a_fleet_asks_for_every_price(client: httpx.AsyncClient):
    fleet = [{"gpu": "a100-sxm-80gb", "gpus": 1, "usd_per_gpu_hour": 2}, {"gpu": "h100-sxm-80gb", "gpus": 1}]
    response = await client.post("/plan/infer", json=infer(hardware={"fleet": fleet}, objective="cost"))
    assert [error["pointer"] for error in response.json()["errors"]] == ["/hardware/fleet/1/usd_per_gpu_hour"]


async def test_advice_on_a_fleet_names_the_entry_that_it_changes(client: httpx.AsyncClient):
    fleet = [{"gpu": "l4-24gb", "gpus": 1}, {"gpu": "h100-sxm-80gb", "gpus": 1}]
    question = infer(model="meta-llama/Llama-3.1-70B", hardware={"fleet": fleet}, serving={"max_model_len": 4096})
    body = (await client.post("/plan/infer", json=question)).json()
    entry = body["fleet"][0]["entry"]
    field = f"hardware.fleet.{entry}.gpus"
    offered = [offer["change"] for offer in body["advice"] if any("gpus" in name for name in offer["change"])]
    assert offered
    for change in offered:
        fleet[entry]["gpus"] = change[field]
        serving = {
            name.removeprefix("serving."): value for name, value in change.items() if name.startswith("serving.")
        }
        layout = {name.removeprefix("layout."): value for name, value in change.items() if name.startswith("layout.")}
        changed = infer(model=question["model"], hardware={"fleet": fleet}, serving=question["serving"] | serving)
        assert (await client.post("/plan/infer", json=changed | {"layout": layout})).json()["meets"]
