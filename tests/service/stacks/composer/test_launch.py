"""llm-foundry's YAML, held against a golden file: llm-foundry needs an older torch."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from plimsoll.planners.questions import Evaluation, Lora
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import golden, launch, why_missing, written


def read(given: TrainingLaunch) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(written("composer", given))
    return found


def test_the_file_is_the_one_that_was_read_beside_train_config():
    given = launch("composer", data_parallel=8, zero_stage=3, recompute="full", micro_batch_size=2, steps=100)
    assert written("composer", given) == golden("composer.yaml")


def test_the_batch_multiplies_out():
    given = launch("composer", data_parallel=8, zero_stage=3, micro_batch_size=2)
    found = read(given)
    # Composer: global batch / ranks / micro-batch = accumulation.
    accumulation = found["global_train_batch_size"] // 8 // found["device_train_microbatch_size"]
    assert accumulation == given.layout.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"zero_stage": 2}, "SHARD_GRAD_OP"),
        ({"zero_stage": 3}, "FULL_SHARD"),
        ({"zero_stage": 3, "data_parallel": 16, "shard_group": 8}, "HYBRID_SHARD"),
    ],
)
def test_stages_are_strategies(changes: dict[str, Any], expected: str):
    found = read(launch("composer", **{"data_parallel": 8, **changes}))
    assert found["fsdp_config"]["sharding_strategy"] == expected


@pytest.mark.parametrize(("stage", "strategy"), [(2, "_HYBRID_SHARD_ZERO2"), (3, "HYBRID_SHARD")])
def test_hybrid_groups_are_of_any_size(stage: int, strategy: str):
    # 440 cards in 5 groups of 88: eleven nodes each.
    found = read(launch("composer", data_parallel=440, zero_stage=stage, shard_group=88))["fsdp_config"]
    assert found["sharding_strategy"] == strategy
    assert (found["data_parallel_replicate_degree"], found["data_parallel_shard_degree"]) == (5, 88)


def test_replicas_have_no_fsdp_config():
    assert "fsdp_config" not in read(launch("composer", data_parallel=8))


def test_adapters_and_evaluations_are_the_questions():
    asked = {"method": "lora", "lora": Lora(rank=8, target_modules=("q_proj",)), "evaluation": Evaluation(batch_size=4)}
    found = read(launch("composer", data_parallel=8, asked=asked))
    assert found["model"]["peft_config"]["r"] == 8
    assert (found["device_eval_batch_size"], found["max_duration"]) == (4, "1ep")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"asked": {"precision": "bf16"}}, "no precision bf16"),
        ({"asked": {"optimizer": "sgd"}}, "no optimizer sgd"),
        ({"recompute": "full"}, "FSDP config only"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_composer_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("composer", launch("composer", **changes))
