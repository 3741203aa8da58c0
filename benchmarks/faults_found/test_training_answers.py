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
