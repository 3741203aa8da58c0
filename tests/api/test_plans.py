"""The plan routes: answered, stored, listed, read as text."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest

from plimsoll.service.text.tables import COLUMNS
from tests.api.questions import TINY_CONFIG, infer, train

# 70B in bf16 mixed needs 16 bytes a parameter, over a terabyte: never on one card.
# The host could hold what one card cannot.
TOO_LARGE: dict[str, Any] = {
    "model": "llama-3.1-70b", "hardware": {"gpu": "h100", "gpus": 1}, "layout": {"offload": "none"},
}  # fmt: skip


async def test_a_training_plan_says_everything_the_contract_names(client: httpx.AsyncClient):
    body = (await client.post("/plan/train", json=train(training={"tokens": 1e9}))).json()
    plan = body["plan"]
    assert body["fits"] is True
    assert body["verdict"] == "fits"
    assert sum(plan["memory"]["items"].values()) == plan["memory"]["peak_bytes"]
    assert sum(plan["step"]["parts"].values()) == pytest.approx(plan["step"]["seconds"])
    # 1e9 tokens / (8 sequences x 512 tokens) = 244,140.6 steps.
    assert plan["run"]["steps"] in (244_140, 244_141)
    assert plan["run"]["cost_usd"] is None
    assert plan["sharding"]["mesh"]["order"] == ["pipeline", "data", "context", "tensor"]


async def test_a_serving_plan_says_everything_the_contract_names(client: httpx.AsyncClient):
    body = (await client.post("/plan/infer", json=infer(serving={"concurrency": 4}))).json()
    kv = body["plan"]["kv"]
    # 2 (key and value) x 2 heads x 64 x 4 layers x 2 bytes.
    assert kv["bytes_per_token"] == 2048
    assert body["meets_concurrency"] is True
    assert body["meets_slo"] is None
    assert body["plan"]["performance"]["concurrency"] == 4


async def test_the_same_question_has_the_same_answer_to_the_byte(client: httpx.AsyncClient):
    first, second = [await client.post("/plan/train", json=train()) for _ in range(2)]
    stored = await client.get(f"/plans/{first.json()['plan_id']}")
    assert first.content == second.content == stored.content


async def test_a_plan_tells_what_was_asked_with_what_was_left_to_the_planner(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train(layout={"tensor_parallel": 1}))).json()["plan_id"]
    told = (await client.get(f"/plans/{plan_id}/question")).json()
    assert (told["plan_id"], told["kind"]) == (plan_id, "train")
    assert told["request"]["layout"]["tensor_parallel"] == 1
    assert told["request"]["layout"]["data_parallel"] is None
    assert (await client.get(f"/plans/{'0' * 40}/question")).status_code == 404


async def test_what_does_not_fit_is_an_answer_and_with_strict_a_conflict(client: httpx.AsyncClient):
    lax = await client.post("/plan/train", json=train(**TOO_LARGE))
    strict = await client.post("/plan/train?strict=true", json=train(**TOO_LARGE))
    assert (lax.status_code, strict.status_code) == (200, 409)
    assert lax.json()["fits"] is False
    assert strict.content == lax.content
    assert (await client.post("/plan/train?strict=true", json=train())).status_code == 200


@pytest.mark.parametrize(("path", "question"), [("/plan/train", train()), ("/plan/infer", infer())])
async def test_a_plan_is_a_table_for_people(client: httpx.AsyncClient, path: str, question: dict[str, Any]):
    by_query = await client.post(f"{path}?format=text", json=question)
    by_header = await client.post(path, json=question, headers={"accept": "text/plain"})
    assert by_query.text == by_header.text
    assert by_query.headers["content-type"].startswith("text/plain")
    lines = [line for line in by_query.text.splitlines() if "torchrun" not in line]
    assert max(map(len, lines)) <= COLUMNS
    assert "Memory of one GPU" in lines


async def test_format_json_wins_over_a_header(client: httpx.AsyncClient):
    response = await client.post("/plan/infer?format=json", json=infer(), headers={"accept": "text/plain"})
    assert response.headers["content-type"] == "application/json"


async def test_plans_are_listed_newest_first_filtered_and_paged(client: httpx.AsyncClient):
    ids = []
    for gpus in (2, 4, 8):
        answer = await client.post("/plan/infer", json=infer(hardware={"gpu": "l40s-48gb", "gpus": gpus}))
        ids.insert(0, answer.json()["plan_id"])
    first = (await client.get("/plans", params={"gpu": "l40s", "limit": 2})).json()
    rest = (await client.get("/plans", params={"gpu": "l40s", "limit": 2, "cursor": first["next_cursor"]})).json()
    assert [plan["plan_id"] for plan in first["items"] + rest["items"]] == ids
    assert rest["next_cursor"] is None
    assert (await client.get("/plans", params={"gpu": "l40s", "kind": "train"})).json()["items"] == []
    assert ids[0] in (await client.get("/plans", params={"format": "text", "gpu": "l40s"})).text


async def test_a_launch_file_is_served_by_its_name(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train())).json()
    response = await client.get(f"/plans/{plan['plan_id']}/artifacts/torchrun")
    assert response.text == plan["artifacts"]["torchrun"] + "\n"
    assert response.headers["content-disposition"] == 'inline; filename="torchrun.sh"'
    queued = await client.get(f"/plans/{plan['plan_id']}/artifacts/jobset?queue=team")
    assert "kueue.x-k8s.io/queue-name: team" in queued.text
    for query, status in (("torchrun?queue=team", 400), ("jobset?queue=Not_a_name", 422)):
        refused = await client.get(f"/plans/{plan['plan_id']}/artifacts/{query}")
        assert refused.status_code == status
    missing = await client.get(f"/plans/{plan['plan_id']}/artifacts/helm")
    assert missing.status_code == 404
    assert "torchrun" in missing.json()["detail"]


async def test_a_file_that_a_program_reads_as_json_is_json(client: httpx.AsyncClient):
    plan = (await client.post("/plan/train", json=train(framework="deepspeed"))).json()
    response = await client.get(f"/plans/{plan['plan_id']}/artifacts/deepspeed")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-disposition"] == 'inline; filename="deepspeed.json"'
    assert response.json() == plan["artifacts"]["deepspeed"]
    assert response.json()["train_batch_size"] == 8


async def test_a_plan_says_which_launch_files_it_lacks_and_why(client: httpx.AsyncClient):
    question = train(framework="fsdp2")
    plan = (await client.post("/plan/train", json=question)).json()
    reason = "torchtitan has no flavor of this model's family and sizes."
    assert plan["missing_artifacts"] == {"torchtitan": [reason]}
    assert f"torchtitan: {reason}" in (await client.post("/plan/train?format=text", json=question)).text


async def test_validate_queues_a_proof_with_the_plan(client: httpx.AsyncClient):
    question = train(framework="fsdp2", validate="count")
    body = (await client.post("/plan/train", json=question)).json()
    job = body["validation"]
    assert (job["kind"], job["state"], job["plan_id"]) == ("validate", "queued", body["plan_id"])
    assert (await client.get(f"/jobs/{job['job_id']}")).json()["plan_id"] == body["plan_id"]


async def test_a_plan_that_cannot_be_proved_yet_is_answered_with_the_reason(client: httpx.AsyncClient):
    question = train(framework="litgpt", validate="trace")
    response = await client.post("/plan/train", json=question)
    assert response.status_code == 200
    body = response.json()
    assert body["validation"] is None
    assert "litgpt" in body["validation_refusal"]
    table = await client.post("/plan/train?format=text", json=question)
    assert "Not validated: Framework 'litgpt' is not traced yet" in table.text


async def test_a_stored_plan_is_queued_for_a_proof(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": "trace"})
    assert response.status_code == 202
    assert response.json()["kind"] == "validate"


async def test_a_proof_of_no_plan_is_not_found(client: httpx.AsyncClient):
    assert (await client.post("/plans/none/validate", json={"level": "count"})).status_code == 404


@pytest.mark.parametrize("level", ["trace", "device"])
async def test_a_serving_plan_is_queued_for_a_proof(client: httpx.AsyncClient, level: str):
    plan_id = (await client.post("/plan/infer", json=infer())).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": level})
    assert (response.status_code, response.json()["queue"]) == (202, "cpu")


async def test_the_trace_of_a_serving_engine_that_no_worker_stands_in_for_is_refused(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/infer", json=infer(serving={"engine": "sglang"}))).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": "trace"})
    assert response.status_code == 501
    assert "sglang" in response.json()["detail"]


@pytest.mark.parametrize(
    ("where", "queue"),
    [
        ({}, "cpu"),
        ({"device": "cpu"}, "cpu"),
        ({"device": "gpu"}, "gpu:h100"),
        ({"device": "gpu", "any_gpu_kind": True}, "gpu"),
    ],
)
async def test_a_run_on_a_device_waits_for_a_worker_that_has_it(
    client: httpx.AsyncClient, where: dict[str, Any], queue: str
):
    plan_id = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": "device", **where})
    assert (response.status_code, response.json()["queue"]) == (202, queue)


async def test_a_trace_needs_no_device_whatever_is_asked(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": "trace", "device": "gpu"})
    assert response.json()["queue"] == "cpu"


async def test_what_is_traced_by_shape_alone_is_refused_at_level_device(client: httpx.AsyncClient):
    question = train(framework="accelerate", training={"method": "qlora"})
    plan_id = (await client.post("/plan/train", json=question)).json()["plan_id"]
    assert (await client.post(f"/plans/{plan_id}/validate", json={"level": "trace"})).status_code == 202
    assert (await client.post(f"/plans/{plan_id}/validate", json={"level": "device"})).status_code == 501


async def test_the_trace_of_a_stack_that_no_worker_traces_is_refused_before_it_is_queued(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/train", json=train(framework="litgpt"))).json()["plan_id"]
    response = await client.post(f"/plans/{plan_id}/validate", json={"level": "trace"})
    assert response.status_code == 501
    assert "litgpt" in response.json()["detail"]


async def test_the_stored_body_is_json_that_reads_back(client: httpx.AsyncClient):
    plan_id = (await client.post("/plan/infer", json=infer())).json()["plan_id"]
    assert json.loads((await client.get(f"/plans/{plan_id}")).text)["plan_id"] == plan_id


async def test_a_fleet_is_planned_on_the_best_of_its_gpus(client: httpx.AsyncClient):
    entries = [{"gpu": "a100-sxm-80gb", "gpus": 8}, {"gpu": "h100-sxm-80gb", "gpus": 8}]
    answer = (await client.post("/plan/train", json=train(hardware={"fleet": entries}))).json()
    assert [entry["gpu"] for entry in answer["fleet"]] == ["h100-sxm-80gb", "a100-sxm-80gb"]
    assert answer["fleet"][0]["layout"] == answer["plan"]["layout"]
    listed = (await client.get("/plans", params={"gpu": "h100"})).json()["items"]
    assert answer["plan_id"] in [item["plan_id"] for item in listed]


async def test_a_plan_names_the_version_that_it_is_for(client: httpx.AsyncClient):
    newest = (await client.post("/plan/train", json=train(framework="fsdp2"))).json()
    assert newest["plan"]["layout"]["framework_version"] == "0.2.2"
    assert any(
        "The plan is for torchtitan 0.2.2; versions 2025-08 to 0.2.2 are planned alike." in said
        for said in newest["assumptions"]
    )
    asked = train(framework="fsdp2", framework_version="2024-11")
    older = (await client.post("/plan/train", json=asked)).json()
    assert older["plan"]["layout"]["framework_version"] == "2024-11"
    assert any("No measured run of it is on record" in said for said in older["assumptions"])


async def test_an_unknown_version_is_a_problem_at_its_field(client: httpx.AsyncClient):
    response = await client.post("/plan/train", json=train(framework="fsdp2", framework_version="0.3"))
    assert response.status_code == 422
    problem = response.json()
    assert problem["type"].endswith("unknown-version")
    (error,) = problem["errors"]
    assert error["pointer"] == "/framework_version"
    assert "Nearest: 0.2.2." in error["detail"]


async def test_named_layouts_are_answered_in_their_order_with_pointers(client: httpx.AsyncClient):
    asked = train(compare=[{"tensor_parallel": 3}, {"tensor_parallel": 1}])
    first, second = (await client.post("/plan/train", json=asked)).json()["comparisons"]
    assert first["outcome"] == "excluded"
    assert {reason["pointer"] for reason in first["reasons"]} == {"/compare/0/tensor_parallel"}
    assert second["outcome"] == "chosen"


async def test_a_layout_that_cannot_exist_names_every_rule_it_breaks(client: httpx.AsyncClient):
    response = await client.post("/plan/train", json=train(layout={"tensor_parallel": 3, "expert_parallel": 2}))
    assert response.status_code == 422
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert pointers == ["/layout/tensor_parallel", "/layout/tensor_parallel", "/layout/expert_parallel"]


async def test_a_stage_that_divides_no_states_of_an_optimizer_is_refused_with_the_one_that_does(
    client: httpx.AsyncClient,
):
    asked = train(framework="megatron", training={"optimizer": "sgd-momentum"})
    assert (await client.post("/plan/train", json=asked)).json()["plan"]["layout"]["zero_stage"] == 0
    response = await client.post("/plan/train", json={**asked, "layout": {"zero_stage": 1}})
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["pointer"] == "/layout/zero_stage"
    assert "needs zero_stage 0, not 1" in error["detail"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
async def test_a_config_with_the_numbers_that_transformers_wrote_is_planned_and_stored(
    client: httpx.AsyncClient, number: str
):
    config = {**TINY_CONFIG, "time_step_limit": [0.0, float(number)]}
    body = json.dumps({**infer(), "model": {"config": config}})
    assert number in body
    answer = await client.post("/plan/infer", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    stored = await client.get(f"/plans/{answer.json()['plan_id']}")
    assert json.loads(stored.text, parse_constant=pytest.fail)["plan_id"] == answer.json()["plan_id"]


def with_change(question: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return the question with an offered change said in it."""
    changed = copy.deepcopy(question)
    for path, value in change.items():
        *objects, field = path.split(".")
        inner = changed
        for name in objects:
            inner = inner.setdefault(name, {})
        inner[field] = value
    return changed


H100S = "h100-sxm-80gb"
WITH_ADVICE: dict[str, dict[str, Any]] = {
    "a named stack that knows no adapters": {
        "model": "llama-3.1-8b", "framework": "fsdp2", "hardware": {"gpu": H100S, "gpus": 1},
        "layout": {"offload": "none"},
    },
    "fixed degrees": {
        "model": "meta-llama/Llama-3.1-70B", "framework": "fsdp2", "hardware": {"gpu": H100S, "gpus": 24},
        "training": {"sequence_length": 8192, "global_batch_size": 96, "recompute": "none"},
        "layout": {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 3},
    },
    "a range of GPUs": {
        "model": "Qwen/Qwen2.5-14B", "hardware": {"gpu": "l40s-48gb", "gpus": {"min": 1, "max": 3}},
        "layout": {"offload": "none"},
    },
    "full precision": {
        "model": "Qwen/Qwen2.5-7B", "framework": "accelerate", "hardware": {"gpu": "rtx-4090-24gb", "gpus": 3},
        "training": {"precision": "fp32", "global_batch_size": 48, "micro_batch_size": 4},
        "layout": {"offload": "none"},
    },
    "a published layout with too little recomputation": {
        "model": "meta-llama/Llama-3.1-405B", "framework": "fsdp2", "hardware": {"gpu": H100S, "gpus": 16384},
        "training": {"sequence_length": 8192, "global_batch_size": 2048, "recompute": "none"},
        "layout": {"tensor_parallel": 8, "pipeline_parallel": 16, "data_parallel": 128},
    },
    "long sequences": {
        "model": "Qwen/Qwen2.5-72B", "framework": "deepspeed", "hardware": {"gpu": "a100-sxm-80gb", "gpus": 96},
        "training": {"sequence_length": 131072, "global_batch_size": 96},
    },
    "no number of GPUs": {"model": "llama-3.1-8b", "hardware": {"gpu": H100S}},
    "a tight plan": {
        "model": "llama-3.1-8b", "framework": "torchtune", "hardware": {"gpu": "rtx-4090-24gb", "gpus": 1},
        "training": {"precision": "bf16", "optimizer": "paged-adamw-8bit"},
    },
}  # fmt: skip


async def test_a_plan_is_not_kept_waiting_by_its_advice(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    crowded = train(model="meta-llama/Llama-3.1-70B", hardware={"gpu": "h100-sxm-80gb", "gpus": 2})
    monkeypatch.setattr("plimsoll.service.plans.making.MOST_SECONDS_TO_ADVISE", 0.0)
    answered = await client.post("/plan/train", json=crowded)
    assert answered.status_code == 200
    assert (answered.json()["verdict"], answered.json()["advice"]) == ("tight", [])


@pytest.mark.parametrize("question", WITH_ADVICE.values(), ids=WITH_ADVICE)
async def test_an_offered_change_gives_the_plan_that_it_was_offered_with(
    client: httpx.AsyncClient, question: dict[str, Any]
):
    offers = (await client.post("/plan/train", json=question)).json()["advice"]
    assert offers
    for offer in offers:
        answer = (await client.post("/plan/train", json=with_change(question, offer["change"]))).json()
        assert "plan" in answer, (offer, answer)
        found = answer["plan"]["memory"]["peak_bytes"], answer["plan"]["step"]["seconds"], answer["verdict"]
        assert found == (offer["peak_bytes"], offer["step_seconds"], offer["verdict"]), offer
