"""`transformers.TrainingArguments` as JSON: what a Trainer must be told to run a plan.

Field names: transformers 5.23, `training_args.py`. FSDP is not among them: the
matching accelerate file turns it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.launch.training import LEARNING_RATE, Target, TrainingLaunch, chosen_dtypes, given_reasons

# `OptimizerNames` of training_args.py.
OPTIMIZERS: Mapping[str, str] = {
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
}
OUTPUT_FOLDER = "output"


def trainer_target(
    engine: Callable[[TrainingLaunch], Mapping[str, Any]],
    why_not: Callable[[TrainingLaunch], tuple[str, ...]],
    recomputes: Callable[[TrainingLaunch], bool],
) -> Target:
    """Return the arguments; `engine` are those that choose what updates the weights.

    `recomputes` where the Trainer itself turns recompute on.
    """
    return Target(
        name="transformers",
        why_not=why_not,
        write=lambda launch: _arguments(launch, engine(launch), recomputes=recomputes(launch)),
    )


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    return given_reasons(
        *chosen_dtypes(question, "TrainingArguments"),
        (
            question.optimizer not in (*OPTIMIZERS, "adamw"),
            f"TrainingArguments has no optimizer {question.optimizer}.",
        ),
        (
            layout.activation_offload,
            "TrainingArguments has no field for offloaded activations; TRL's SFTConfig adds activation_offloading.",
        ),
    )


def _arguments(launch: TrainingLaunch, engine: Mapping[str, Any], *, recomputes: bool) -> dict[str, Any]:
    """Return the arguments; sequences are cut to the plan's length by the script that prepares the data."""
    question, layout = launch.question, launch.layout
    arguments: dict[str, Any] = {
        "output_dir": OUTPUT_FOLDER,
        "per_device_train_batch_size": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.gradient_accumulation_steps,
        "learning_rate": LEARNING_RATE,
        "bf16": question.precision == "bf16-mixed",
        "fp16": question.precision == "fp16-mixed",
        "use_liger_kernel": layout.fused_cross_entropy,
        "activation_checkpointing": recomputes,
    }
    if question.precision in ("fp32", "tf32"):
        arguments["tf32"] = question.precision == "tf32"
    arguments |= engine
    if launch.plan.run.steps is not None:
        arguments["max_steps"] = launch.plan.run.steps
    if question.evaluation is not None:
        arguments["per_device_eval_batch_size"] = question.evaluation.batch_size
        arguments["eval_accumulation_steps"] = question.evaluation.accumulation_steps
        arguments["prediction_loss_only"] = not question.evaluation.keeps_logits
    return arguments


def _optimizer(launch: TrainingLaunch) -> str:
    """Return the Trainer's name of the optimizer; the plan counts with torch's foreach AdamW or with its fused one."""
    if launch.question.optimizer != "adamw":
        return OPTIMIZERS[launch.question.optimizer]
    profile = load_profile(launch.layout.framework, launch.question.kernels)
    works_in_place = profile.optimizer_transient_copies == 0
    return "adamw_torch_fused" if works_in_place else "adamw_torch"


def _recomputes(launch: TrainingLaunch) -> bool:
    """Return whether the Trainer recomputes: beside FSDP's own recompute it would gather every layer once more."""
    return launch.layout.recompute == "full" and launch.layout.zero_stage == 0


def _updating(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the optimizer, and that shards of gradients are reduced at each micro-batch.

    The Trainer's own default keeps whole gradients on every rank until the last one (trainer.py, `_run_epoch`).
    """
    layout = launch.layout
    if layout.zero_stage == 0 or layout.gradient_accumulation_steps == 1:
        return {"optim": _optimizer(launch)}
    reduced = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {"optim": _optimizer(launch), "accelerator_config": reduced}


TRANSFORMERS = trainer_target(_updating, _why_not, _recomputes)
