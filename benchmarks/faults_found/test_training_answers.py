"""Training plans: what was found is answered, in whole sentences, and what is impossible says what works."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest


def plan(service: httpx.Client, **request: Any) -> dict[str, Any]:
    """Return the plan of a training job; fails where it is refused."""
    answer = service.post("/plan/train", json=request)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def asked(model: str, gpu: str, gpus: int, *, sequence_length: int = 4096, batch: int, **more: Any) -> dict[str, Any]:
    training = {"sequence_length": sequence_length, "global_batch_size": batch, **more.pop("training", {})}
    return {"model": model, "hardware": {"gpu": gpu, "gpus": gpus}, "training": training, **more}


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "batch"),
    [
        ("deepseek-ai/DeepSeek-V3", "h800", 2048, 15_360),
        ("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", 64, 192),
        *(
            ("Qwen/Qwen3-30B-A3B", "h100-sxm", gpus, batch)
            for gpus in (16, 64, 256)
            for batch in (384, 640, 768, 1280, 1536, 1920, 3072)
        ),
    ],
)
def test_a_mixture_with_a_batch_of_factors_3_and_5_is_planned(
    service: httpx.Client, model: str, gpu: str, gpus: int, batch: int
) -> None:
    body = plan(service, **asked(model, gpu, gpus, batch=batch))
    assert body["verdict"] == "fits"
    assert body["omitted"] == []
    assert gpus in body["plan"]["run"]["elastic_gpus"]


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5"])
@pytest.mark.parametrize("framework", ["any", "accelerate", "composer"])
def test_a_model_with_an_indexer_is_planned(service: httpx.Client, model: str, framework: str) -> None:
    body = plan(service, **asked(model, "h200", 1024, batch=1024, framework=framework))
    assert body["plan"]["memory"]["peak_bytes"] > 0


@pytest.mark.parametrize("batch", [64, 1024])
def test_a_number_of_gpus_without_a_layout_names_those_that_work(service: httpx.Client, batch: int) -> None:
    request = asked("meta-llama/Llama-3.1-8B", "h100-sxm", 1000, batch=batch)
    refusal = service.post("/plan/train", json=request)
    assert refusal.status_code == 422
    detail = refusal.json()["detail"]
    found = re.search(r"Set gpus to (\d+) or (\d+), or global_batch_size to (\d+) or (\d+)", detail)
    assert found, detail
    below, above, *batches = map(int, found.groups())
    assert below < 1000 < above
    for gpus in (below, above):
        assert plan(service, **asked("meta-llama/Llama-3.1-8B", "h100-sxm", gpus, batch=batch))["fits"]
    for other in batches:
        assert plan(service, **asked("meta-llama/Llama-3.1-8B", "h100-sxm", 1000, batch=other))["fits"]


def test_a_box_of_eight_pcie_cards_is_one_node(service: httpx.Client) -> None:
    open_question = asked("meta-llama/Llama-3.1-8B", "rtx-4090", 8, batch=64)
    named = asked("meta-llama/Llama-3.1-8B", "rtx-4090", 8, batch=64)
    named["hardware"]["gpus_per_node"] = 8
    step = plan(service, **open_question)["plan"]["step"]["seconds"]
    assert step == plan(service, **named)["plan"]["step"]["seconds"] < 40


def test_failures_are_those_that_llama_3_counted(service: httpx.Client) -> None:
    request = asked("meta-llama/Llama-3.1-405B", "h100-sxm", 16_384, sequence_length=8192, batch=2048)
    # 419 unexpected interruptions in 54 days: 7.8 a day.
    assert plan(service, **request)["plan"]["run"]["failures_per_day"] == pytest.approx(7.76, rel=0.02)
    gloomy = plan(service, **request, resilience={"gpu_failures_per_month": "pessimistic"})
    assert gloomy["plan"]["run"]["failures_per_day"] == pytest.approx(16_384 * 0.08 / 30)


@pytest.mark.parametrize("framework", ["accelerate", "ddp", "deepspeed", "fsdp2", "litgpt", "megatron", "torchtune"])
def test_assumptions_are_whole_sentences(service: httpx.Client, framework: str) -> None:
    body = plan(service, **asked("meta-llama/Llama-3.2-1B", "h100-sxm", 8, batch=64, framework=framework))
    for sentence in (body["summary"], *body["assumptions"]):
        assert sentence.endswith("."), sentence
        assert " is on record; " not in sentence.split("rests on")[-1] or "rests on" not in sentence
        assert " 1 GPUs" not in sentence


def test_offload_of_activations_is_said(service: httpx.Client) -> None:
    request = asked("meta-llama/Llama-3.1-8B", "h100-sxm", 8, batch=8, sequence_length=8192)
    request["training"]["activation_offload"] = True
    body = plan(service, **request, framework="torchtune")
    assert body["plan"]["layout"]["activation_offload"]
    assert "activations offloaded to host memory" in body["summary"]
    assert any("activations wait in host memory" in note for note in body["assumptions"])


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        *(("google-bert/bert-large-uncased", framework) for framework in ("torchtune", "litgpt", "nanotron")),
        *(("state-spaces/mamba-2.8b-hf", framework) for framework in ("torchtune", "litgpt", "megatron-deepspeed")),
    ],
)
def test_a_stack_without_code_for_a_model_is_refused_with_those_that_have_it(
    service: httpx.Client, model: str, framework: str
) -> None:
    question = asked(model, "h100-sxm", 8, sequence_length=512, batch=64)
    refusal = service.post("/plan/train", json={**question, "framework": framework})
    assert refusal.status_code == 422
    problem = refusal.json()
    assert f"{framework} has no code for" in problem["detail"]
    assert "accelerate" in problem["detail"]
    assert plan(service, **question)["plan"]["layout"]["framework"] != framework


def test_what_no_stack_combines_is_said_of_both(service: httpx.Client) -> None:
    training = {"optimizer": "muon", "precision": "fp8-mixed"}
    request = asked("meta-llama/Llama-3.1-8B", "h100-sxm", 8, batch=64, training=training)
    detail = service.post("/plan/train", json=request).json()["detail"]
    assert "No stack combines precision fp8-mixed" in detail
    assert "optimizer muon" in detail
    assert "accelerate" not in detail


@pytest.mark.parametrize(
    ("gpu", "more"),
    [
        ("h100-sxm", {"training": {"optimizer": "muon"}}),
        ("rtx-4090", {"training": {"method": "lora"}, "layout": {"sequence_parallel": True}}),
        ("h100-sxm", {"layout": {"offload": "optimizer", "offload_target": "nvme"}}),
    ],
)
def test_what_the_measured_stacks_lack_is_not_called_room(
    service: httpx.Client, gpu: str, more: dict[str, Any]
) -> None:
    summary = plan(service, **asked("meta-llama/Llama-3.1-8B", gpu, 8, batch=64, **more))["summary"]
    assert "No measured stack" in summary
    assert "room" not in summary


def test_a_deadline_is_kept_with_failures_where_more_gpus_keep_it(service: httpx.Client) -> None:
    request = asked("Qwen/Qwen2.5-14B", "l40s", 4, batch=64, objective="deadline", deadline_seconds=1e9)
    request["training"]["tokens"] = 2e9
    alone = plan(service, **request)["plan"]["run"]["seconds"]
    request["hardware"]["gpus"], request["deadline_seconds"] = {"min": 4, "max": 24}, alone * 1.0001
    body = plan(service, **request)
    assert body["plan"]["layout"]["gpus"] > 4
    assert body["plan"]["run"]["expected_seconds"] <= request["deadline_seconds"]


@pytest.mark.parametrize(
    ("part", "field", "value", "meant"),
    [
        ("training", "gradient_accumulation_steps", 8, "global_batch_size"),
        ("training", "max_seq_length", 4096, "sequence_length"),
        ("training", "optimizer", "AdamW", "'adamw'"),
        ("training", "precision", "bf16_mixed", "'bf16-mixed'"),
        (None, "framework", "torchtitan", "'fsdp2'"),
        (None, "model", [1], "path, hub or parameters"),
    ],
)
def test_names_of_other_programs_are_answered_with_those_here(
    service: httpx.Client, part: str | None, field: str, value: object, meant: str
) -> None:
    request = asked("meta-llama/Llama-3.1-8B", "h100-sxm", 8, batch=64)
    (request if part is None else request[part])[field] = value
    refusal = service.post("/plan/train", json=request)
    assert refusal.status_code == 422
    assert meant in refusal.text


def test_time_of_context_parallelism_is_told_apart_from_tensor_parallelism(service: httpx.Client) -> None:
    layout = {"tensor_parallel": 1, "context_parallel": 8}
    request = asked("meta-llama/Llama-3.1-8B", "l40s", 8, sequence_length=32_768, batch=8, layout=layout)
    parts = plan(service, **request)["plan"]["step"]["parts"]
    assert parts["context_parallel"] > 0
    assert parts["tensor_parallel"] == 0


def test_the_batch_that_fits_on_a_thousand_gpus_is_advised(service: httpx.Client) -> None:
    body = plan(service, **asked("deepseek-ai/DeepSeek-V3", "h800", 1000, batch=15_360))
    assert 15_000 in [advice["change"].get("training.global_batch_size") for advice in body["advice"]]
