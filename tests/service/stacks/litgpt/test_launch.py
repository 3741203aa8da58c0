"""LitGPT's YAML: read by its own command line, and held against a golden file."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import golden, launch, why_missing, written

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


@pytest.mark.skipif(importlib.util.find_spec("litgpt") is None, reason="`make` installs litgpt, without its hub client")
@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("pretrain", {"shard_group": 8, "asked": {"tokens": 1e9}}),
        ("pretrain", {"data_parallel": 1, "zero_stage": 0}),
        ("finetune_full", {"recompute": "full", "steps": 2000}),
    ],
)
def test_litgpts_command_line_accepts_the_file(
    command: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with warnings.catch_warnings():
        # Lightning and litgpt import what torch deprecates.
        warnings.simplefilter("ignore")
        from jsonargparse import ArgumentParser
        from litgpt.__main__ import PARSER_DATA
    given = plan(**changes)
    # Finetuning looks for the checkpoint that it is given.
    (tmp_path / "checkpoints" / LLAMA).mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(written("litgpt", given), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    parser = ArgumentParser()
    parser.add_function_arguments(PARSER_DATA[command])
    found = parser.parse_path("config.yaml")
    # Both recipes hand the ranks of all nodes to TrainArgs; 64 sequences are what the plan has.
    train = parser.instantiate_classes(found).train
    ranks = found.devices * found.num_nodes
    steps = train.gradient_accumulation_iters(found.devices, found.num_nodes)
    assert (ranks, steps * train.micro_batch_size * ranks) == (given.layout.gpus, 64)


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
        ({"data_parallel": 12, "recompute": "full"}, "not a whole number of nodes"),
        ({"asked": {"gradient_dtype": "bf16"}}, "gradient_dtype bf16"),
    ],
)
def test_what_litgpt_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("litgpt", plan(**changes))
