"""What an answer says of its layout, sent back in a request: it is accepted, and means the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.requests.training import LayoutPart
from tests.api.questions import train

# What an answer's layout says that a request has beside `layout`.
OF_TRAINING = ("micro_batch_size", "fused_cross_entropy")
MIXTURE = "Qwen/Qwen3-30B-A3B"


def sent_back(request: Mapping[str, Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with the layout of its answer fixed."""
    training = {**request["training"], **{name: layout[name] for name in OF_TRAINING}}
    return {
        **request,
        "hardware": {**request["hardware"], "gpus": layout["gpus"]},
        "training": {**training, "recompute": recompute(layout), "activation_offload": activation_offload(layout)},
        "layout": {name: layout[name] for name in LayoutPart.model_fields},
        "framework": layout["framework"],
    }


def activation_offload(layout: Mapping[str, Any]) -> bool | dict[str, Any]:
    """Return what of activations is offloaded, as a request says it."""
    if layout["offload_layers"] is not None:
        return {"layers": layout["offload_layers"]}
    return {"modules": layout["offload_modules"]} if layout["offload_modules"] else layout["activation_offload"]


def recompute(layout: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return what is computed again, as a request says it."""
    if layout["recompute_modules"]:
        return {"modules": layout["recompute_modules"]}
    if layout["recompute_every"]:
        return {"every": layout["recompute_every"]}
    layers = layout["recompute_layers"]
    return layout["recompute"] if layers is None else {"full_layers": layers}


QUESTIONS: dict[str, dict[str, Any]] = {
    **{f"{name}, alone": train(framework=name) for name in stack_names()},
    **{
        f"{name}, replicas": train(framework=name, hardware={"gpu": "h100-sxm-80gb", "gpus": 8})
        for name in stack_names()
    },
    "pipelines and interleaved stages": train(
        model="Qwen/Qwen2.5-72B-Instruct",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 64},
        training={"sequence_length": 4096, "global_batch_size": 256},
    ),
    "tensor-parallel ranks whose option is on": train(
        framework="megatron",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 4},
        layout={"tensor_parallel": 2, "overlap": {"tensor_parallel": True}},
    ),
    "tensor-parallel ranks without sequence parallelism": train(
        framework="megatron",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 4},
        layout={"tensor_parallel": 2, "sequence_parallel": False},
    ),
    "a fork that hides without an option": train(
        framework="megatron-deepspeed",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 4},
        layout={"tensor_parallel": 2, "sequence_parallel": True},
    ),
    "a mixture whose exchange hides": train(
        model=MIXTURE,
        framework="megatron",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 64},
        training={"sequence_length": 4096, "global_batch_size": 512},
        layout={"overlap": {"expert_parallel": True}},
    ),
    "a mixture recomputed by modules": train(
        model=MIXTURE,
        framework="megatron",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 16},
        training={"global_batch_size": 64, "recompute": {"modules": ["layernorm", "moe_act"]}},
    ),
    "parts of layers on the host": train(
        model=MIXTURE,
        framework="megatron",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 16},
        training={"global_batch_size": 64, "activation_offload": True},
    ),
    "selective recompute of what the stack takes": train(framework="megatron", training={"recompute": "selective"}),
    "every other layer": train(framework="fsdp2", training={"recompute": {"every": 2}}),
    "no layer that the search recomputes": train(
        framework="megatron", training={"recompute": {"full_layers": 1}}, hardware={"gpu": "h100-sxm-80gb", "gpus": 2}
    ),
    "Muon": train(
        framework="megatron", hardware={"gpu": "h100-sxm-80gb", "gpus": 8}, training={"optimizer": "muon"}
    ),
    "adapters": train(training={"method": "lora"}),
    "drives that nothing is put on": train(framework="deepspeed", layout={"offload_target": "nvme"}),
    "states on the host": train(
        framework="deepspeed", hardware={"gpu": "h100-sxm-80gb", "gpus": 2}, layout={"offload": "optimizer"}
    ),
    "a schedule without flushes": train(
        framework="reference",
        hardware={"gpu": "h100-sxm-80gb", "gpus": 2},
        layout={"pipeline_schedule": "pipedream", "pipeline_parallel": 2},
    ),
    "what does not fit": train(
        model="meta-llama/Llama-3.1-70B", framework="accelerate", layout={"offload": "none"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("request_body", QUESTIONS.values(), ids=QUESTIONS)
async def test_an_answers_layout_sent_back_is_the_same_plan(client: httpx.AsyncClient, request_body: dict[str, Any]):
    answered = await client.post("/plan/train", json=request_body)
    assert answered.status_code == 200, answered.text
    first = answered.json()["plan"]
    again = await client.post("/plan/train", json=sent_back(request_body, first["layout"]))
    assert again.status_code == 200, again.text
    second = again.json()["plan"]
    assert second["layout"] == first["layout"]
    assert second["memory"] == first["memory"]
    assert second["step"] == first["step"]
