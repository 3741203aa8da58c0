"""Megatron-DeepSpeed's arguments, held against a golden file, and the DeepSpeed file beside them."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import LLAMA_31_8B, golden, launch, why_missing, written

LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-05, "max_position_embeddings": 8192,
}  # fmt: skip
GPT_2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 8192}


def plan(**changes: Any) -> TrainingLaunch:
    return launch("megatron-deepspeed", **{"config": LLAMA_2_7B, **changes})


def test_the_arguments_are_those_that_were_read_beside_its_parser():
    given = plan(data_parallel=2, tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True, zero_stage=1)
    assert written("megatron-deepspeed", given) == golden("megatron-deepspeed.txt")


@pytest.mark.parametrize(
    "way", ["account-for-embedding-and-loss", "type:transformer|embedding", "uniform", "parameters"]
)
def test_a_division_that_its_parser_has_no_option_for_is_not_written(way: str):
    config = {**LLAMA_2_7B, "num_hidden_layers": 30}
    layout = {"pipeline_parallel": 4, "zero_stage": 1, "pipeline_layout": way}
    assert "--pp-partition-method" in why_missing("megatron-deepspeed", plan(config=config, **layout))


@pytest.mark.parametrize("way", [None, "even", "type:transformer"])
def test_a_division_that_is_its_own_is_written(way: str | None):
    given = plan(pipeline_parallel=4, zero_stage=1, pipeline_layout=way)
    assert "--pipeline-model-parallel-size 4" in written("megatron-deepspeed", given)


def test_both_files_say_the_same_of_batch_and_stage():
    given = plan(data_parallel=4, tensor_parallel=2, zero_stage=1, micro_batch_size=2)
    lines = written("megatron-deepspeed", given).splitlines()
    config = training_artifacts(given).files["deepspeed"]
    assert isinstance(config, dict)
    assert {"--global-batch-size 64", "--micro-batch-size 2", "--zero-stage 1", "--no-pipeline-parallel"} <= set(lines)
    assert (config["train_batch_size"], config["zero_optimization"]["stage"]) == (64, 1)
    # 4 replicas x 2 sequences x 8 micro-batches = 64.
    assert config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 4 == 64
    assert "optimizer" not in config


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", set()),
        ("selective", {"--recompute-granularity selective"}),
        (
            "full",
            {
                "--deepspeed-activation-checkpointing",
                "--recompute-granularity full",
                "--recompute-method uniform",
                "--recompute-num-layers 1",
            },
        ),
    ],
)
def test_recompute_is_the_plans(recompute: str, expected: set[str]):
    lines = written("megatron-deepspeed", plan(recompute=recompute)).splitlines()
    assert {line for line in lines if "recompute" in line or "checkpointing" in line} == expected


def test_gpt_2_learns_its_positions():
    lines = written("megatron-deepspeed", plan(config=GPT_2)).splitlines()
    assert "--max-position-embeddings 8192" in lines
    assert "--use-rotary-position-embeddings" not in lines


def test_torchrun_starts_its_script():
    assert " pretrain_gpt.py --num-layers 32 " in written("torchrun", plan())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": LLAMA_31_8B}, "does not scale rotary positions"),
        (
            {"config": {**LLAMA_2_7B, "model_type": "qwen2"}},
            "does not write Megatron-DeepSpeed's arguments for qwen2 yet",
        ),
        ({"config": {**LLAMA_2_7B, "attention_bias": True}}, "biases in the attention's matrices"),
        ({"asked": {"precision": "bf16"}}, "no option for precision bf16"),
        ({"recompute": "full", "recompute_layers": 2}, "Recompute of 2 layers alone"),
        ({"asked": {"optimizer_state_dtype": "bf16"}}, "optimizer states in fp32"),
    ],
)
def test_what_it_cannot_be_told_is_not_written(changes: dict[str, Any], reason: str):
    assert reason in why_missing("megatron-deepspeed", plan(**changes))
    assert written("torchrun", plan(**changes)).endswith(" train.py")
