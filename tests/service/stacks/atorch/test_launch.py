"""ATorch's strategy, held against a golden file: atorch needs Triton-era packages that no CPU machine has."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.atorch.launch import LAYER_CLASSES
from tests.service.stacks.launches import LLAMA_31_8B, golden, launch, why_missing


def strategy(given: TrainingLaunch) -> dict[str, Any]:
    """Return each optimization's config by its name."""
    content = training_artifacts(given).files["atorch"]
    assert isinstance(content, dict)
    return dict(content["load_strategy"])


def test_the_file_is_the_one_that_was_read_beside_atorchs_library():
    given = launch("atorch", data_parallel=16, zero_stage=3, shard_group=8, recompute="full", micro_batch_size=2)
    content = training_artifacts(given).files["atorch"]
    assert json.dumps(content, indent=2) == golden("atorch.json")


def test_the_batch_multiplies_out():
    content = training_artifacts(launch("atorch", data_parallel=8, micro_batch_size=2)).files["atorch"]
    assert isinstance(content, dict)
    assert content["batch_size"] * content["gradient_accumulation_steps"] * 8 == 64


@pytest.mark.parametrize(("stage", "expected"), [(0, set()), (2, {"zero2"}), (3, {"fsdp"})])
def test_stages_are_optimizations_of_their_own(stage: int, expected: set[str]):
    assert strategy(launch("atorch", data_parallel=8, zero_stage=stage)).keys() & {"zero2", "fsdp"} == expected


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bf16-mixed", ("amp_native", {"dtype": "bf16"})),
        ("fp16-mixed", ("amp_native", {"dtype": "fp16"})),
        ("bf16", ("half", "bf16")),
    ],
)
def test_precision_is_the_plans(precision: str, expected: tuple[str, Any]):
    name, config = expected
    assert strategy(launch("atorch", asked={"precision": precision}))[name] == config


def test_full_precision_needs_no_optimization():
    assert not strategy(launch("atorch", asked={"precision": "fp32"})).keys() & {"amp_native", "half"}


@pytest.mark.parametrize("family", LAYER_CLASSES)
def test_transformers_has_the_layers(family: str):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    assert hasattr(module, LAYER_CLASSES[family])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {**LLAMA_31_8B, "model_type": "granite"}}, "class of a granite model's layers"),
        ({"data_parallel": 16, "zero_stage": 2, "shard_group": 8}, "hybrid sharding"),
        ({"asked": {"precision": "tf32"}}, "turns tf32 on"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_atorch_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("atorch", launch("atorch", **changes))
