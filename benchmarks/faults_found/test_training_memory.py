"""Training memory: what a job holds, as the stacks' own code and published runs have it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

V100 = "v100-sxm-32gb"


def _gpt2(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "config": {
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_layer": layers,
            "n_embd": hidden,
            "n_head": hidden // 128,
        }
    }


def _planned(service: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    answer = service.post("/plan/train", json=request)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _offloaded(model: Any, gpus: int, layout: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "hardware": {"gpu": V100, "gpus": gpus, "gpus_per_node": gpus},
        "framework": "deepspeed",
        "training": {
            "precision": "fp16-mixed",
            "sequence_length": 1024,
            "micro_batch_size": 1,
            "global_batch_size": gpus,
            "recompute": "full",
        },
        "layout": {"data_parallel": gpus, **layout},
    }


def test_zero_offload_trains_13b_on_one_v100(service: httpx.Client) -> None:
    # Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840: 13 billion parameters on a single V100 of 32 GB.
    body = _planned(service, _offloaded("paper/gpt-3-13b", 1, {"zero_stage": 2, "offload": "optimizer"}))
    assert body["fits"]


@pytest.mark.parametrize(("layers", "hidden"), [(50, 4096), (50, 8192), (128, 25600)])
def test_zero_infinity_trains_10b_40b_and_1t_on_a_dgx_2(service: httpx.Client, layers: int, hidden: int) -> None:
    # Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857: up to a trillion parameters on one DGX-2.
    layout = {"zero_stage": 3, "offload": "optimizer+parameters", "offload_target": "nvme"}
    body = _planned(service, _offloaded(_gpt2(layers, hidden), 16, layout))
    assert body["fits"]


def test_gradients_follow_an_offloaded_optimizer(service: httpx.Client) -> None:
    body = _planned(service, _offloaded(_gpt2(50, 8192), 16, {"zero_stage": 3, "offload": "optimizer"}))
    moments = body["plan"]["memory"]["stages"][0]["moments"]
    steps = [moment for moment in moments if moment["phase"] == "optimizer step"]
    assert [moment["items"]["gradients"] for moment in steps] == [0]


def test_what_layers_keep_falls_as_they_finish(service: httpx.Client) -> None:
    request = {
        "model": "meta-llama/Llama-3.1-8B",
        "framework": "megatron",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "training": {"sequence_length": 8192, "global_batch_size": 64, "recompute": "none"},
    }
    (stage, *_) = _planned(service, request)["plan"]["memory"]["stages"]
    kept = [moment["items"]["activations"] for moment in stage["moments"] if moment["phase"] == "backward"]
    assert len(kept) > 2
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5"])
def test_attention_with_an_indexer_is_planned(service: httpx.Client, model: str) -> None:
    request = {
        "model": model,
        "framework": "fsdp2",
        "hardware": {"gpu": "h200-sxm-141gb", "gpus": 256},
        "training": {"sequence_length": 4096, "global_batch_size": 256},
    }
    assert _planned(service, request)["plan"] is not None
