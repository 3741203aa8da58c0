"""Searches that passed over what fits, or what is faster."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


def planned(service: httpx.Client, **request: Any) -> dict[str, Any]:
    answer = service.post("/plan/train", json=request)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_70b_qlora_fits_two_cards_of_24_gb_with_offload(service: httpx.Client):
    answer = planned(
        service,
        model="meta-llama/Llama-3.1-70B",
        hardware={"gpu": "rtx-4090-24gb", "gpus": 2},
        training={"method": "qlora", "sequence_length": 1024, "global_batch_size": 16},
    )
    assert answer["fits"]
    assert answer["plan"]["layout"]["offload"] != "none"


def test_any_stack_fits_70b_on_eight_h100_as_a_named_one_does(service: httpx.Client):
    answer = planned(
        service,
        model="meta-llama/Llama-3.1-70B",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 8},
        training={"sequence_length": 8192, "global_batch_size": 64},
    )
    assert answer["fits"]
    assert answer["stacks"]["searched"]
    assert any(note.startswith("The search tried ") for note in answer["assumptions"])


def test_gpt2_xl_on_a_4090_is_advised_bf16_and_eight_bit_adam_before_hardware(service: httpx.Client):
    answer = planned(
        service,
        model="openai-community/gpt2-xl",
        hardware={"gpu": "rtx-4090-24gb", "gpus": 1},
        training={"sequence_length": 1024, "global_batch_size": 16},
    )
    changes = [name for offer in answer["advice"] for name in offer["change"]]
    assert {"training.precision", "training.optimizer"} <= set(changes)
    assert changes.index("training.optimizer") < changes.index("hardware.gpu")


@pytest.mark.parametrize("context_parallel", [2, 4])
def test_405b_with_a_context_degree_fixed_is_not_faster_than_left_free(service: httpx.Client, context_parallel: int):
    request: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-405B",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1152},
        "training": {"sequence_length": 8192, "global_batch_size": 576},
    }
    free = planned(service, **request)["plan"]["step"]["seconds"]
    fixed = planned(service, **request, layout={"context_parallel": context_parallel})["plan"]["step"]["seconds"]
    assert free <= fixed * 1.01


@pytest.mark.parametrize("gpus", [4096, 16384])
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"])
def test_large_mixtures_are_searched_in_under_a_second(service: httpx.Client, model: str, gpus: int):
    answer = planned(
        service,
        model=model,
        hardware={"gpu": "h100-sxm-80gb", "gpus": gpus},
        training={"sequence_length": 4096, "global_batch_size": 15360},
    )
    assert answer["search"]["seconds"] < 1.0


def test_four_bits_are_offered_only_where_they_gain_over_sixteen(service: httpx.Client):
    answer = planned(
        service,
        model="Qwen/Qwen3-32B",
        hardware={"gpu": "a100-sxm-40gb", "gpus": 4},
        training={"sequence_length": 4096, "global_batch_size": 64},
        layout={"offload": "none"},
    )
    offers = {
        offer["change"]["training.method"]: offer for offer in answer["advice"] if "training.method" in offer["change"]
    }
    assert all("Planned for speed" in offer["reason"] for offer in offers.values())
    if {"lora", "qlora"} <= set(offers):
        gains = [offers["qlora"][field] < offers["lora"][field] for field in ("peak_bytes", "step_seconds")]
        assert any(gains)


def test_every_number_of_recomputed_layers_is_tried_on_two_gpus(service: httpx.Client):
    request: dict[str, Any] = {"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 2}}
    training = {"sequence_length": 4096, "global_batch_size": 64}
    free = planned(service, **request, training=training)["plan"]["step"]["seconds"]
    recompute = {"full_layers": 10}
    fixed = planned(service, **request, framework="megatron", training={**training, "recompute": recompute})
    assert fixed["fits"]
    assert free <= fixed["plan"]["step"]["seconds"]


def test_sequence_parallelism_that_is_asked_for_is_in_the_answer(service: httpx.Client):
    answer = planned(
        service,
        model="meta-llama/Llama-3.1-8B",
        hardware={"gpu": "rtx-4090-24gb", "gpus": 8},
        training={"method": "lora", "sequence_length": 4096, "global_batch_size": 64},
        layout={"sequence_parallel": True},
    )
    assert answer["plan"]["layout"]["sequence_parallel"]


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "method"),
    [("Qwen/Qwen2.5-32B", "rtx-5090-32gb", 2, "lora"), ("Qwen/Qwen2.5-14B", "rtx-4090-24gb", 2, "full")],
)
def test_a_shard_group_is_planned_on_any_stack(service: httpx.Client, model: str, gpu: str, gpus: int, method: str):
    answer = planned(
        service,
        model=model,
        hardware={"gpu": gpu, "gpus": gpus},
        training={"method": method, "sequence_length": 2048, "global_batch_size": 8},
        layout={"shard_group": gpus},
    )
    assert answer["plan"]["layout"]["shard_group"] == gpus
    assert "ddp" in {each["framework"] for each in answer["stacks"]["left_out"]}


def test_fully_sharded_states_are_never_divided_over_one_replica_of_two(service: httpx.Client):
    answer = planned(
        service,
        model="meta-llama/Llama-3.1-70B",
        framework="accelerate",
        hardware={"gpu": "rtx-3090-24gb", "gpus": 2},
        training={"method": "qlora", "sequence_length": 512, "global_batch_size": 8, "recompute": "full"},
    )
    # accelerate refuses FSDP where dp_shard_size is 1.
    assert "dp_shard_size: 1" not in answer["artifacts"]["accelerate"]
    assert answer["plan"]["layout"]["shard_group"] == 2


def test_advice_on_a_stack_names_no_other_stack_that_is_the_same(service: httpx.Client):
    answer = planned(
        service,
        model="meta-llama/Llama-3.1-8B",
        framework="accelerate",
        hardware={"gpu": "rtx-4090-24gb", "gpus": 1},
        training={"method": "qlora", "sequence_length": 2048, "global_batch_size": 16, "micro_batch_size": 1},
    )
    others = [each["reason"] for each in answer["advice"] if each["change"].get("framework") == "any"]
    assert not any("accelerate" in reason for reason in others)


def test_the_same_advice_is_given_once(service: httpx.Client):
    answer = planned(
        service,
        model="Qwen/Qwen2.5-7B",
        framework="deepspeed",
        hardware={"gpu": "rtx-4090-24gb", "gpus": 4},
        training={"sequence_length": 2048, "global_batch_size": 32},
        layout={"zero_stage": 2, "offload": "optimizer"},
    )
    changes = [each["change"] for each in answer["advice"]]
    assert all(change not in changes[:number] for number, change in enumerate(changes))


def test_a_deadline_without_tokens_points_at_the_tokens(service: httpx.Client):
    answer = service.post(
        "/plan/train",
        json={
            "model": "meta-llama/Llama-3.1-8B",
            "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
            "objective": "deadline",
            "deadline_seconds": 86400,
        },
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/training/tokens"


def test_groups_of_eleven_nodes_have_composers_config(service: httpx.Client):
    answer = planned(
        service,
        model="mosaicml/mpt-30b",
        framework="composer",
        hardware={"gpu": "a100-sxm-40gb", "gpus": 440},
        training={"sequence_length": 2048, "global_batch_size": 1760},
        layout={"zero_stage": 3, "shard_group": 88},
    )
    assert "data_parallel_shard_degree: 88" in answer["artifacts"]["composer"]
