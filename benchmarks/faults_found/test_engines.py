"""Engines that earlier versions wrote commands for though they cannot run the model, or not on the card."""

from __future__ import annotations

import pytest


def ask(service, model, gpu="h100-sxm-80gb", *, gpus=8, **serving):
    body = {"model": model, "hardware": {"gpu": gpu, "gpus": gpus}, "serving": {"max_model_len": 448, **serving}}
    return service.post("/plan/infer", json=body)


@pytest.mark.parametrize(
    ("model", "gpu", "serving"),
    [
        ("google-t5/t5-3b", "h100-sxm-80gb", {"engine": "vllm"}),
        ("google-t5/t5-3b", "h100-sxm-80gb", {"engine": "sglang"}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100-sxm-80gb", {"engine": "vllm", "engine_version": "0.8"}),
        ("openai/gpt-oss-20b", "h100-sxm-80gb", {"engine": "vllm", "engine_version": "0.9"}),
        ("meta-llama/Llama-3.2-11B-Vision", "h100-sxm-80gb", {"engine": "vllm", "engine_version": "0.11"}),
        ("meta-llama/Llama-3.1-8B", "mi300x-192gb", {"engine": "tensorrt-llm"}),
        ("meta-llama/Llama-3.1-8B", "v100-sxm-32gb", {"engine": "tensorrt-llm", "weights": "fp16"}),
        ("google/gemma-2-9b", "h100-sxm-80gb", {"engine": "vllm", "weights": "fp16"}),
    ],
)
def test_what_an_engine_cannot_run_is_refused_with_a_way_out(service, model, gpu, serving):
    answer = ask(service, model, gpu, **serving)
    assert answer.status_code == 422, answer.text
    assert "Able are" in answer.text or "is able" in answer.text or "Ask for" in answer.text


def test_a_release_left_away_is_one_that_has_the_model(service):
    found = ask(service, "meta-llama/Llama-3.2-11B-Vision").json()
    assert found["plan"]["settings"]["engine_version"] == "0.10"


def test_own_code_of_a_repository_is_trusted(service):
    found = ask(service, "moonshotai/Kimi-Linear-48B-A3B-Instruct").json()
    assert "--trust-remote-code" in found["artifacts"]["vllm"]


def test_a_plan_that_does_not_fit_has_no_command(service):
    found = ask(service, "meta-llama/Llama-3.1-405B", gpus=1).json()
    assert not found["fits"]
    assert found["artifacts"] == {}


def test_four_bits_on_a_card_without_bf16_are_computed_in_fp16(service):
    found = ask(service, "TheBloke/Llama-2-7B-AWQ", "t4-16gb", gpus=1)
    found = found if found.status_code == 200 else ask(service, "meta-llama/Llama-2-7b-hf", "t4-16gb", weights="int4")
    assert found.json()["plan"]["settings"]["kv_cache"] == "fp16"
