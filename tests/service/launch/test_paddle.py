"""PaddlePaddle's fleet strategy, held against a golden file: Paddle itself is too large to test with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plimsoll.service.artifacts.training import training_artifacts
from tests.service.stacks.launches import golden, launch, why_missing


def strategy(**changes: Any) -> dict[str, Any]:
    content = training_artifacts(launch("megatron", **changes)).files["paddle"]
    assert isinstance(content, dict)
    return dict(content)


def test_the_strategy_is_the_one_that_was_read_beside_fleets():
    degrees = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2}
    found = strategy(**degrees, zero_stage=1, micro_batch_size=2, recompute="full")
    assert json.dumps(found, indent=2) == golden("paddle.json")


@pytest.mark.parametrize(("stage", "data", "shards"), [(0, 8, 1), (1, 1, 8)])
def test_the_batch_multiplies_out(stage: int, data: int, shards: int):
    found = strategy(data_parallel=8, zero_stage=stage, micro_batch_size=2)
    hybrid, pipeline = found["hybrid_configs"], found["pipeline_configs"]
    assert (hybrid["dp_degree"], hybrid["sharding_degree"]) == (data, shards)
    assert data * shards * pipeline["micro_batch_size"] * pipeline["accumulate_steps"] == 64


@pytest.mark.parametrize(
    ("framework", "changes", "reason"),
    [
        ("megatron", {"context_parallel": 2}, "Context parallelism"),
        ("megatron", {"data_parallel": 8, "expert_parallel": 8}, "Expert parallelism"),
        ("reference", {"data_parallel": 8, "zero_stage": 2}, "as stage 1 does"),
        ("reference", {"offload": "optimizer"}, "offloads no states"),
        ("megatron", {"recompute": "selective"}, "recomputes whole layers"),
        ("megatron", {"recompute": "full", "recompute_layers": 2}, "recomputes whole layers"),
        ("reference", {"asked": {"precision": "bf16"}}, "Precision bf16"),
        ("reference", {"asked": {"method": "lora"}}, "Adapters"),
    ],
)
def test_what_fleet_cannot_be_told_is_not_written(framework: str, changes: dict[str, Any], reason: str):
    assert reason in why_missing("paddle", launch(framework, **changes))
