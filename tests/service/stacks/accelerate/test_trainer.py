"""`TrainingArguments` as JSON: accepted by transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.questions import Evaluation
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.service.stacks.launches import launch


def parsed(given: TrainingLaunch, folder: Path) -> Any:
    from transformers import TrainingArguments

    content = training_artifacts(given).files["transformers"]
    assert isinstance(content, dict)
    # This machine has no GPU to ask for bf16 and tf32, and no DeepSpeed file lies here.
    told = {name: value for name, value in content.items() if name not in ("deepspeed", "tf32")}
    return TrainingArguments(**{**told, "output_dir": str(folder), "use_cpu": True})


@pytest.mark.parametrize("framework", ["accelerate", "ddp", "deepspeed"])
def test_transformers_accepts_the_arguments_and_the_batch_multiplies_out(framework: str, tmp_path: Path):
    found = parsed(launch(framework, data_parallel=8, micro_batch_size=2), tmp_path)
    assert found.per_device_train_batch_size * found.gradient_accumulation_steps * 8 == 64
    assert (found.bf16, found.fp16) == (True, False)


def test_what_this_machine_leaves_out_are_fields_too():
    from transformers import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for given in (launch("deepspeed"), launch("accelerate", asked={"precision": "tf32"})):
        assert set(training_artifacts(given).files["transformers"]) <= known


def test_fsdp_recomputes_by_itself(tmp_path: Path):
    sharded = parsed(launch("accelerate", data_parallel=8, zero_stage=3, recompute="full"), tmp_path)
    replicated = parsed(launch("accelerate", data_parallel=8, recompute="full"), tmp_path)
    assert (sharded.activation_checkpointing, replicated.activation_checkpointing) == (False, True)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adamw", "adamw_torch_fused"),
        ("adamw-8bit", "adamw_bnb_8bit"),
        ("paged-adamw", "paged_adamw_32bit"),
        ("paged-adamw-8bit", "paged_adamw_8bit"),
        ("sgd", "sgd"),
        ("adafactor", "adafactor"),
        ("lion", "lion_32bit"),
    ],
)
def test_optimizers_are_known(optimizer: str, expected: str, tmp_path: Path):
    assert parsed(launch("accelerate", asked={"optimizer": optimizer}), tmp_path).optim == expected


def test_a_plan_that_counts_a_copy_of_the_parameters_takes_torchs_foreach(tmp_path: Path):
    assert parsed(launch("accelerate", asked={"kernels": "eager"}), tmp_path).optim == "adamw_torch"


def test_a_plan_that_counts_no_copies_takes_the_fused_optimizer(tmp_path: Path):
    assert parsed(launch("ddp"), tmp_path).optim == "adamw_torch_fused"


def test_shards_of_gradients_are_reduced_at_each_micro_batch(tmp_path: Path):
    several = {"data_parallel": 8, "micro_batch_size": 2}
    sharded, replicated = (parsed(launch("accelerate", zero_stage=stage, **several), tmp_path) for stage in (3, 0))
    assert sharded.gradient_accumulation_steps > 1
    assert sharded.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert replicated.accelerator_config.gradient_accumulation_kwargs is None


def test_deepspeed_brings_its_own_optimizer():
    content = training_artifacts(launch("deepspeed", data_parallel=8)).files["transformers"]
    assert content["deepspeed"] == "deepspeed.json"
    assert "optim" not in content


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("tf32", True)])
def test_full_precision_says_whether_products_are_shortened(precision: str, tf32: bool):
    content = training_artifacts(launch("accelerate", asked={"precision": precision})).files["transformers"]
    assert (content["tf32"], content["bf16"]) == (tf32, False)


def test_a_token_budget_ends_the_run(tmp_path: Path):
    assert parsed(launch("accelerate", steps=250), tmp_path).max_steps == 250
    assert parsed(launch("accelerate"), tmp_path).max_steps == -1


def test_evaluations_are_the_questions(tmp_path: Path):
    evaluation = Evaluation(batch_size=4, samples=100, keeps_logits=True, accumulation_steps=5)
    found = parsed(launch("accelerate", asked={"evaluation": evaluation}), tmp_path)
    assert (found.per_device_eval_batch_size, found.eval_accumulation_steps) == (4, 5)
    assert found.prediction_loss_only is False


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (launch("accelerate", asked={"optimizer": "sgd-momentum"}), "no optimizer sgd-momentum"),
        (launch("accelerate", activation_offload=True), "TRL's SFTConfig"),
        (launch("accelerate", asked={"gradient_dtype": "fp32"}), "gradient_dtype fp32"),
        (launch("deepspeed", data_parallel=8, expert_parallel=2), "MoE layers"),
    ],
)
def test_what_a_trainer_cannot_be_told_is_not_written(given: TrainingLaunch, reason: str):
    found = training_artifacts(given)
    assert "transformers" not in found.files
    assert reason in " ".join(found.missing["transformers"])
