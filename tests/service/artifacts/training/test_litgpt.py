"""LitGPT's YAML, held against a golden file: litgpt needs an older hub client than transformers does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.artifacts.training import TrainingLaunch
from tests.service.artifacts.training.launches import golden, launch, why_missing, written

LLAMA = "meta-llama/Llama-3.1-8B"


def plan(**changes: Any) -> TrainingLaunch:
    return launch("litgpt", **{"model_name": LLAMA, "data_parallel": 16, "zero_stage": 3, **changes})


def read(given: TrainingLaunch) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(written("litgpt", given))
    return found


def test_the_file_is_the_one_that_was_read_beside_the_recipe():
    assert written("litgpt", plan(shard_group=8, asked={"tokens": 1e9})) == golden("litgpt.yaml")


def test_the_batch_multiplies_out():
    found = read(plan(shard_group=8, micro_batch_size=2))
    ranks = found["devices"] * found["num_nodes"]
    # TrainArgs.gradient_accumulation_iters: 64 // 16 // 2.
    assert found["train"]["global_batch_size"] // ranks // found["train"]["micro_batch_size"] == 2


def test_full_recompute_is_finetunings():
    found = read(plan(recompute="full", steps=20))
    assert (found["checkpoint_dir"], found["train"]["max_steps"]) == (f"checkpoints/{LLAMA}", 20)


def test_one_gpu_pretrains():
    assert read(plan(data_parallel=1, zero_stage=0))["model_name"] == "Llama-3.1-8B"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_name": None}, "by their names"),
        ({"asked": {"method": "lora"}}, "adapter recipes"),
        ({"asked": {"optimizer": "lion"}}, "optimizer lion"),
        ({"asked": {"precision": "fp16-mixed"}}, "Precision fp16-mixed"),
        ({}, "None of litgpt's recipes"),  # pretrain shards within a node only
        ({"zero_stage": 2, "recompute": "full"}, "None of litgpt's recipes"),
        ({"shard_group": 8, "recompute": "full"}, "None of litgpt's recipes"),
        ({"data_parallel": 1, "recompute": "full"}, "None of litgpt's recipes"),
        ({"data_parallel": 12, "recompute": "full"}, "no whole number of nodes"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_litgpt_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("litgpt", plan(**changes))
