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


ON_NVME = {"zero_stage": 3, "offload": "optimizer+parameters", "offload_target": "nvme"}


@pytest.mark.parametrize(("layers", "hidden"), [(50, 4096), (50, 8192)])
def test_zero_infinity_trains_10b_and_40b_on_a_dgx_2(service: httpx.Client, layers: int, hidden: int) -> None:
    # Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857: up to a trillion parameters on one DGX-2.
    body = _planned(service, _offloaded(_gpt2(layers, hidden), 16, ON_NVME))
    assert body["fits"]


def test_zero_infinity_has_room_for_1t_on_16_v100_and_2_tb_of_16_bit_gradients_on_their_host(
    service: httpx.Client,
) -> None:
    # The published run was of a release that sent the gradients of a single micro-batch straight to NVMe. From 0.6 on
    # they lie on the host whole (stage3.py, `grad_partitions_flat_buffer`), more than the 1.5 TiB of a DGX-2.
    request = _offloaded(_gpt2(128, 25600), 16, ON_NVME)
    memory = _planned(service, request)["plan"]["memory"]
    assert memory["peak_bytes"] < memory["limit_bytes"]
    assert memory["node_host_bytes"] > 2e12
    request["hardware"]["host_memory_bytes"] = 3 * 2**40
    assert _planned(service, request)["fits"]


def _on_one_h100(**hardware: Any) -> dict[str, Any]:
    return {
        "model": "meta-llama/Llama-3.1-70B",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1, **hardware},
        "training": {"method": "full"},
    }


def test_70b_on_one_gpu_does_not_fit_for_sure_with_a_terabyte_of_host_memory_that_nobody_said_is_there(
    service: httpx.Client,
) -> None:
    body = _planned(service, _on_one_h100())
    assert body["verdict"] == "tight"
    assert "hardware.host_memory_bytes" in body["summary"]
    assert "hardware.host_memory_bytes" in body["advice"][0]["change"]


def test_70b_on_one_gpu_needs_the_host_memory_that_is_given(service: httpx.Client) -> None:
    refused = _planned(service, _on_one_h100(host_memory_bytes=512 * 2**30))
    assert not refused["fits"]
    assert refused["advice"][0]["change"]["hardware.host_memory_bytes"] > 10**12
    assert _planned(service, _on_one_h100(host_memory_bytes=2 * 2**40))["verdict"] == "fits"
    assert _planned(service, _on_one_h100(cluster="dgx-h100"))["verdict"] == "fits"


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


def _adapted(framework: str = "accelerate", **lora: Any) -> dict[str, Any]:
    return {
        "model": "meta-llama/Llama-3.1-8B",
        "framework": framework,
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "training": {
            "method": "lora",
            "sequence_length": 2048,
            "micro_batch_size": 1,
            "global_batch_size": 4,
            "recompute": "full",
            "lora": lora,
        },
    }


def _parameter_bytes(service: httpx.Client, request: dict[str, Any]) -> int:
    return int(_planned(service, request)["plan"]["memory"]["items"]["parameters"])


def test_an_adapter_s_name_that_the_model_lacks_is_refused(service: httpx.Client) -> None:
    answer = service.post("/plan/train", json=_adapted(target_modules=["q_proj", "nonsense"]))
    assert answer.status_code == 422
    assert "/training/lora/target_modules/1" in answer.text


def test_an_adapter_on_the_head_counts(service: httpx.Client) -> None:
    # Rank 16 beside 128,256 x 4,096: fp32, and the 16-bit cast of it that autocast keeps (torch, autocast_mode.cpp).
    alone, with_head = (
        _parameter_bytes(service, _adapted(target_modules=names)) for names in (["q_proj"], ["q_proj", "lm_head"])
    )
    assert with_head - alone == pytest.approx((4 + 2) * 16 * (128_256 + 4_096), abs=4096)


def test_all_linear_is_every_linear_layer_but_the_head(service: httpx.Client) -> None:
    usual = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    every, named = (_parameter_bytes(service, _adapted(target_modules=names)) for names in ("all-linear", usual))
    assert every == named


def test_modules_to_save_are_trained_whole_beside_the_frozen_ones(service: httpx.Client) -> None:
    alone = _parameter_bytes(service, _adapted(target_modules=["q_proj"]))
    saved = _parameter_bytes(service, _adapted(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]))
    assert saved - alone == pytest.approx(2 * 4 * 128_256 * 4_096, rel=1e-6)


def test_a_frozen_base_in_fp32_is_counted_in_fp32(service: httpx.Client) -> None:
    base = 8_030_261_248
    assert _parameter_bytes(service, _adapted("litgpt", target_modules=["q_proj"])) > 4 * base
    assert _parameter_bytes(service, _adapted(target_modules=["q_proj"], base_dtype="fp32")) > 4 * base
    body = _planned(service, _adapted("litgpt", target_modules=["q_proj"]))
    assert any("frozen base is held in fp32" in note for note in body["assumptions"])
