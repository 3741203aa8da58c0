"""Layouts in a line: compact, and never the same line for two that differ."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.plans import Layout
from plimsoll.planners.serving.answer import ServingLayout
from plimsoll.service.text.labels import serving_labels, training_labels

LAYOUT: dict[str, Any] = {
    "framework": "megatron", "gpus": 8, "data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2,
    "virtual_pipeline": 1, "context_parallel": 1, "expert_parallel": 1, "sequence_parallel": True, "zero_stage": 1,
    "shard_group": 2, "offload": "none", "offload_target": "cpu", "micro_batch_size": 1,
    "gradient_accumulation_steps": 32, "recompute": "full", "recompute_layers": None, "activation_offload": False,
    "fused_cross_entropy": False, "pipeline_schedule": "1f1b",
    "pipeline_layout": "even", "overlap": None, "recompute_modules": [], "recompute_every": None,
    "secondary_shard_group": 1, "offload_modules": [], "context_all_to_all": 1,
    "offload_layers": None, "framework_version": None,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "framework": "fsdp2", "gpus": 16, "data_parallel": 4, "tensor_parallel": 4, "pipeline_parallel": 4,
    "virtual_pipeline": 2, "context_parallel": 2, "expert_parallel": 2, "sequence_parallel": False, "zero_stage": 3,
    "shard_group": 1, "offload": "optimizer", "offload_target": "nvme", "micro_batch_size": 2,
    "gradient_accumulation_steps": 16, "recompute": "selective", "recompute_layers": 8, "activation_offload": True,
    "fused_cross_entropy": True, "pipeline_schedule": "gpipe",
    "pipeline_layout": "first=7,last=7", "overlap": {"expert_parallel": True},
    "recompute_modules": ["layernorm", "moe_act"], "recompute_every": 2, "secondary_shard_group": 8,
    "offload_modules": ["core_attn"], "context_all_to_all": 2,
    "offload_layers": 5, "framework_version": "0.2",
}  # fmt: skip
DEPLOYMENT: dict[str, Any] = {
    "gpu": "h100", "weights": "bf16", "kv_cache": "bf16", "max_num_batched_tokens": 8192, "max_num_seqs": 256,
    "layout": {
        "gpus": 8, "tensor_parallel": 8, "pipeline_parallel": 1, "data_parallel": 1, "attention_data_parallel": 1,
        "expert_parallel": 1, "decode_context_parallel": 1, "prefill_replicas": None,
    },
}  # fmt: skip


def test_a_layout_by_itself_is_told_its_degrees():
    assert training_labels([LAYOUT]) == ["8 GPUs: megatron d2 t2 p2 c1 zero1 b1 full"]
    busy = {
        **LAYOUT,
        "virtual_pipeline": 4,
        "expert_parallel": 2,
        "recompute_layers": 8,
        "offload": "optimizer+parameters",
    }
    assert training_labels([busy]) == ["8 GPUs: megatron d2 t2 p2v4 c1 e2 zero1 b1 full 8 +opt,par"]


def test_every_field_of_a_layout_is_among_those_tried_here():
    assert set(LAYOUT) == set(OTHERS) == set(Layout.__dataclass_fields__)
    assert set(DEPLOYMENT["layout"]) == set(ServingLayout.__dataclass_fields__)


# How often a rank accumulates follows from the batch and the other degrees.
@pytest.mark.parametrize("name", sorted(set(LAYOUT) - {"gradient_accumulation_steps"}))
def test_two_layouts_that_differ_in_one_field_read_differently(name: str):
    first, second = training_labels([LAYOUT, {**LAYOUT, name: OTHERS[name]}])
    assert first != second
    # So does one that differs from the plan alone.
    (beside,) = training_labels([{**LAYOUT, name: OTHERS[name]}], LAYOUT)
    assert beside == second


def test_only_what_tells_two_apart_is_added():
    fused = {**LAYOUT, "fused_cross_entropy": True}
    other = {**fused, "gpus": 16}
    assert training_labels([LAYOUT, fused, other]) == [
        "8 GPUs: megatron d2 t2 p2 c1 zero1 b1 full no fused loss",
        "8 GPUs: megatron d2 t2 p2 c1 zero1 b1 full fused loss",
        "16 GPUs: megatron d2 t2 p2 c1 zero1 b1 full",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "fp8"},
        {"kv_cache": "fp8"},
        {"max_num_batched_tokens": 2048},
        {"max_num_seqs": 64},
        *({"layout": {**DEPLOYMENT["layout"], name: 4}} for name in DEPLOYMENT["layout"]),
    ],
    ids=str,
)
def test_two_deployments_that_differ_read_differently(change: dict[str, Any]):
    first, second = serving_labels([DEPLOYMENT, {**DEPLOYMENT, **change}])
    assert first != second
