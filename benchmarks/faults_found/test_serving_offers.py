"""Advice on serving that did not do what it said."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

L4 = {"gpu": "l4-24gb", "gpus": {"min": 1, "max": 6}}
A100 = {"gpu": "a100-sxm-80gb", "gpus": 6}
FLEET = {"fleet": [{"gpu": "l4-24gb", "gpus": 1}, {"gpu": "a100-sxm-80gb", "gpus": 1}]}
LACKING = [
    ("meta-llama/Llama-3.1-8B", L4, {"requests_per_second": 40, "slo": {"tpot_seconds": 0.05}}, "throughput"),
    ("Qwen/Qwen2.5-32B", A100, {"engine": "tensorrt-llm", "slo": {"ttft_seconds": 0.5}}, "fewest_gpus"),
    ("Qwen/Qwen2.5-72B", {"gpu": "a100-sxm-80gb", "gpus": 1}, {"max_model_len": 8192, "concurrency": 4}, "throughput"),
    ("meta-llama/Llama-3.1-70B", {"gpu": "l4-24gb", "gpus": 8}, {"max_model_len": 8192, "concurrency": 32}, "cost"),
    ("meta-llama/Llama-3.1-8B", L4, {"disaggregated": True, "requests_per_second": 30}, "throughput"),
    ("meta-llama/Llama-3.1-70B", FLEET, {"max_model_len": 8192, "concurrency": 16}, "throughput"),
    ("meta-llama/Llama-3.1-8B", L4, {"weights": ["bf16", "fp16"], "concurrency": 3000}, "throughput"),
]


def plan(service: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = service.post("/plan/infer", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def asked(model: str, hardware: dict[str, Any], serving: dict[str, Any], objective: str) -> dict[str, Any]:
    return {"model": model, "hardware": hardware, "serving": serving, "objective": objective}


def with_change(body: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    for name, value in change.items():
        *path, last = name.split(".")
        part: Any = changed
        for step in path:
            part = part[int(step)] if isinstance(part, list) else part.setdefault(step, {})
        part[last] = value
    return changed


@pytest.mark.parametrize(("model", "hardware", "serving", "objective"), LACKING)
def test_every_offer_keeps_all_that_was_asked_when_it_is_followed(service, model, hardware, serving, objective):
    body = asked(model, hardware, serving, objective)
    answer = plan(service, body)
    assert not answer["meets"]
    assert answer["advice"]
    for offer in answer["advice"]:
        followed = plan(service, with_change(body, offer["change"]))
        assert followed["meets"], offer
        if "fleet" not in hardware:
            assert followed["plan"]["performance"]["tpot_seconds"] == offer["tpot_seconds"], offer


def test_the_fewest_gpus_are_named_where_they_are_what_is_wanted(service):
    offers = plan(service, asked(*LACKING[1]))["advice"]
    assert [offer["change"]["hardware.gpus"] for offer in offers if "hardware.gpus" in offer["change"]] == [8]


def test_a_larger_batch_or_share_is_advised_where_it_suffices(service):
    one = {"gpu": "h100-sxm-80gb", "gpus": 1}
    few = {"max_model_len": 8192, "max_num_seqs": 16, "concurrency": 64}
    offers = plan(service, asked("meta-llama/Llama-3.1-8B", one, few, "throughput"))["advice"]
    assert {"serving.max_num_seqs": 64} in [offer["change"] for offer in offers]
    small = {"max_model_len": 8192, "gpu_memory_utilization": 0.3, "concurrency": 128}
    offers = plan(service, asked("meta-llama/Llama-3.1-8B", one, small, "throughput"))["advice"]
    assert any(offer["change"].keys() == {"serving.gpu_memory_utilization"} for offer in offers)


def test_a_pipeline_within_a_node_is_advised_after_faster_tensor_parallelism(service):
    offers = [offer for offer in plan(service, asked(*LACKING[2]))["advice"] if offer["gpus"] == 2]
    pipelines = [offer["change"].get("layout.pipeline_parallel", 1) for offer in offers]
    assert pipelines[0] == 1
    assert offers[0]["tpot_seconds"] < offers[-1]["tpot_seconds"]


def test_an_impossible_level_is_answered_with_the_one_that_is_kept(service):
    one = {"gpu": "h100-sxm-80gb", "gpus": 1}
    level = {"concurrency": 64, "slo": {"tpot_seconds": 0.001}}
    (offer,) = plan(service, asked("meta-llama/Llama-3.1-8B", one, level, "throughput"))["advice"]
    assert offer["change"].keys() == {"serving.slo.tpot_seconds"}
    assert "No other settings or formats were found" in offer["reason"]


def test_prefill_and_decode_replicas_are_counted_apart(service):
    pools = {"disaggregated": True, "concurrency": 16}
    four = {"gpu": "h100-sxm-80gb", "gpus": 4}
    told = plan(service, asked("meta-llama/Llama-3.1-8B", four, pools, "throughput"))["summary"]
    assert "prefill and" in told
    assert "decode replica" in told
