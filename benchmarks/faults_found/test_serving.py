"""Serving plans that earlier versions answered wrongly."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

LOADS = (64, 128, 256, 512)


def plan(service: httpx.Client, body: dict[str, Any], **query: str) -> dict[str, Any]:
    answer = service.post("/plan/infer", json=body, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def asked(model: str, gpu: str, gpus: Any, *, objective: str = "throughput", **serving: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpu": gpu, "gpus": gpus}, "serving": serving, "objective": objective}


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb"])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"])
def test_no_pipeline_is_recommended_inside_an_nvlink_node_that_a_replica_fits(service, model, gpu):
    for concurrency in LOADS:
        found = plan(service, asked(model, gpu, 8, concurrency=concurrency, max_model_len=8192))
        assert found["plan"]["layout"]["pipeline_parallel"] == 1


def test_tensor_parallelism_comes_before_a_pipeline_that_misses_the_latency_by_more(service):
    body = asked("Qwen/Qwen3-32B", "l40s-48gb", 2, concurrency=32, slo={"tpot_seconds": 0.04})
    layout = plan(service, body)["plan"]["layout"]
    assert (layout["tensor_parallel"], layout["pipeline_parallel"]) == (2, 1)


def test_a_range_is_answered_with_no_more_gpus_than_a_number_within_it(service):
    body = asked("meta-llama/Llama-3.3-70B-Instruct", "h100-sxm-80gb", {"min": 1, "max": 64}, objective="fewest_gpus")
    body["serving"] = {"concurrency": 256, "max_model_len": 8192, "slo": {"tpot_seconds": 0.1}}
    ranged = plan(service, body)
    for gpus in range(2, ranged["plan"]["layout"]["gpus"]):
        body["hardware"]["gpus"] = gpus
        point = plan(service, body)
        assert not (point["meets"] and point["verdict"] == "fits"), gpus


def test_a_service_level_that_is_missed_is_the_headline(service):
    body = asked("meta-llama/Llama-3.1-8B", "h100-sxm-80gb", 1, concurrency=64, slo={"tpot_seconds": 0.001})
    found = plan(service, body)
    assert (found["fits"], found["meets"]) == (True, False)
    assert "misses what was asked" in found["summary"]
    assert service.post("/plan/infer", json=body, params={"strict": "true"}).status_code == 409
    text = service.post("/plan/infer", json=body, params={"format": "text"}).text
    assert "misses what was asked" in text.splitlines()[0]


def test_the_summary_tells_the_requests_and_the_latency_that_were_asked_for(service):
    found = plan(service, asked("meta-llama/Llama-3.1-8B", "h100-sxm-80gb", 1, concurrency=32))
    assert "serves 32 requests at once" in found["summary"]
    assert "ms per token" in found["summary"]


def test_the_sum_of_what_does_not_fit_adds_up(service):
    body = asked("meta-llama/Llama-3.1-70B", "h100-sxm-80gb", 2, engine_version="0.19", max_model_len=131072)
    told = plan(service, body)["summary"]
    sums = re.findall(r"take ([\d.]+) GiB of each GPU and the engine's share is ([\d.]+); the ([\d.]+) GiB left", told)
    assert sums or "nothing is left" in told
    for held, share, left in sums:
        assert float(held) + float(left) == pytest.approx(float(share))


def test_a_hybrid_models_batch_is_one_that_vllm_starts_with(service):
    found = plan(service, asked("Qwen/Qwen3.6-27B", "h100-sxm-80gb", 1))
    settings, words = found["plan"]["settings"], found["artifacts"]["vllm"].split()
    assert settings["max_num_seqs"] <= found["plan"]["kv"]["blocks"]
    assert int(words[words.index("--max-num-seqs") + 1]) == settings["max_num_seqs"]


def test_vllm_chooses_the_blocks_of_a_latent_cache_itself(service):
    found = plan(service, asked("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", 8))
    assert "--block-size" not in found["artifacts"]["vllm"]


def test_a_launch_file_that_is_missing_has_a_reason(service):
    found = plan(service, asked("meta-llama/Llama-3.1-8B", "h100-sxm-80gb", 1, weights="int4"))
    assert "vllm" not in found["artifacts"]
    assert "int4" in found["missing_artifacts"]["vllm"][0]


def test_the_cheapest_deployment_is_not_listed_beside_hundreds_of_gpus(service):
    body = asked("meta-llama/Llama-3.1-8B", "h100-sxm-80gb", {"min": 1, "max": 512}, objective="cost", concurrency=64)
    body["hardware"]["usd_per_gpu_hour"] = 2.0
    found = plan(service, body)
    assert all(other["layout"]["gpus"] <= 8 for other in found["alternatives"])
    assert all(other["cost_usd_per_million_output_tokens"] > 0 for other in found["alternatives"])
    assert "per M tokens" in service.post("/plan/infer", json=body, params={"format": "text"}).text


def test_8_bits_are_advised_before_more_gpus_and_4_bits_last(service):
    found = plan(service, asked("meta-llama/Llama-3.1-405B", "h100-sxm-80gb", 4, max_model_len=8192))
    changes = [offer["change"] for offer in found["advice"]]
    offers = [(change.get("hardware.gpus"), change.get("serving.weights")) for change in changes]
    assert offers == [(8, "fp8"), (16, None), (None, "int4")]


def test_no_gpu_is_taken_that_brings_a_missed_service_level_no_closer(service):
    body = asked(
        "01-ai/Yi-1.5-34B",
        "b300-sxm-270gb",
        {"min": 1, "max": 3},
        objective="fewest_gpus",
        engine="sglang",
        concurrency=3000,
        input_tokens=1024,
        output_tokens=128,
        max_model_len=2048,
        slo={"ttft_seconds": 5.0, "tpot_seconds": 0.02},
    )
    assert plan(service, body)["plan"]["layout"]["gpus"] == 2


@pytest.mark.parametrize("objective", ["throughput", "cost", "fewest_gpus"])
@pytest.mark.parametrize(("gpu", "rate"), [("h100-sxm-80gb", 10), ("h200-sxm-141gb", 1)])
def test_at_a_request_rate_no_layout_answers_as_many_requests_sooner(service, gpu, rate, objective):
    load = {"requests_per_second": rate, "input_tokens": 2000, "output_tokens": 300}
    body = asked("meta-llama/Llama-3.3-70B-Instruct", gpu, 8, objective=objective, **load)
    free = plan(service, body)["plan"]["performance"]
    for tensor, pipeline in ((8, 1), (4, 1), (4, 2), (2, 2)):
        fixed = plan(service, body | {"layout": {"tensor_parallel": tensor, "pipeline_parallel": pipeline}})
        sooner = fixed["plan"]["performance"]["tpot_seconds"] < 0.99 * free["tpot_seconds"]
        assert not (sooner and fixed["meets"] and fixed["verdict"] == "fits"), (tensor, pipeline)


def test_a_quantized_repository_and_its_model_in_the_same_format_have_their_own_commands(service):
    for model in ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B"):
        found = plan(service, asked(model, "h200-sxm-141gb", 4, weights="fp8", concurrency=37, max_model_len=8192))
        assert f"vllm serve {model} " in found["artifacts"]["vllm"]


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.28"), ("sglang", "0.5.23")])
@pytest.mark.parametrize(
    ("model", "gpus"), [("Qwen/Qwen3-235B-A22B-FP8", 8), ("MiniMaxAI/MiniMax-M2", 8), ("Qwen/Qwen3-30B-A3B-FP8", 4)]
)
def test_experts_in_fp8_are_not_cut_within_a_block_of_scales(service, model, gpus, engine, version):
    # 1,536 features over 8 ranks, or 768 over 4, are 192 each: no multiple of 128, and the engine stops while it loads.
    body = asked(model, "h200-sxm-141gb", gpus, engine=engine, engine_version=version, concurrency=16)
    cut = body | {"layout": {"tensor_parallel": gpus, "expert_parallel": 1}}
    answer = service.post("/plan/infer", json=cut)
    assert answer.status_code == 422
    assert "192 each, which is no multiple of 128" in answer.json()["detail"]
    assert plan(service, body | {"layout": {"tensor_parallel": gpus, "expert_parallel": gpus}})["fits"]


@pytest.mark.parametrize(
    ("model", "gpu", "engine"),
    [
        ("openai/gpt-oss-20b", "rtx-5090-32gb", "tensorrt-llm"),
        ("Qwen/Qwen3-235B-A22B-FP8", "a10g-24gb", "sglang"),
    ],
)
def test_a_level_that_no_number_of_gpus_keeps_is_answered(service, model, gpu, engine):
    body = asked(model, gpu, None, engine=engine, concurrency=7, max_model_len=12288, slo={"ttft_seconds": 0.02})
    found = plan(service, body)
    assert (found["fits"], found["meets"]) == (True, False)
    assert any("serving.slo.ttft_seconds" in offer["change"] for offer in found["advice"])


def test_the_bytes_of_a_token_are_those_the_capacity_was_counted_with(service):
    body = asked("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", 8, concurrency=32)
    body["layout"] = {"tensor_parallel": 8, "decode_context_parallel": 8}
    for asking in (body, asked("microsoft/Phi-3-mini-128k-instruct", "l40s-48gb", 1, max_model_len=32768)):
        kv = plan(service, asking)["plan"]["kv"]
        assert kv["tokens"] * kv["bytes_per_token_per_gpu"] == pytest.approx(kv["available_bytes"], rel=0.02)


def test_gpus_that_fixed_degrees_do_not_divide_are_what_is_refused(service):
    body = asked("Qwen/Qwen3-30B-A3B", "a10g-24gb", 5, max_model_len=8192)
    answer = service.post("/plan/infer", json=body | {"layout": {"tensor_parallel": 1, "pipeline_parallel": 2}})
    assert answer.json()["detail"] == "With the fixed degrees no layout uses 5 GPUs."


@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "t4-16gb"])
def test_a_card_without_bf16_serves_in_fp16_where_no_format_was_asked(service, gpu):
    found = plan(service, asked("Qwen/Qwen2.5-7B-Instruct", gpu, 2, concurrency=4, max_model_len=8192))
    assert (found["plan"]["settings"]["weights"], found["plan"]["settings"]["kv_cache"]) == ("fp16", "fp16")
    assert "--dtype float16" in found["artifacts"]["vllm"]
