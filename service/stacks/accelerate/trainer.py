"""`transformers.TrainingArguments` as JSON: what a Trainer must be told to run a plan.

Field names: transformers 5.23, `training_args.py`. FSDP is not among them: the
matching accelerate file turns it on, as it does DeepSpeed where the command is
`accelerate launch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.launch.training import (
    DEEPSPEED_FILE,
    LEARNING_RATE,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
    of_stacks,
)
from plimsoll.service.stacks.deepspeed.launch import DEEPSPEED

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


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    if layout.framework == "deepspeed":
        return tuple(DEEPSPEED.why_not(launch))
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


def training_arguments(launch: TrainingLaunch) -> dict[str, Any]:
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
        "activation_checkpointing": layout.recompute == "full" and not _is_fsdp(launch),
    }
    if question.precision in ("fp32", "tf32"):
        arguments["tf32"] = question.precision == "tf32"
    if layout.framework == "deepspeed":
        arguments["deepspeed"] = DEEPSPEED_FILE
    else:
        arguments["optim"] = _optimizer(launch)
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
    works_in_place = load_profile(launch.layout.framework).optimizer_transient_copies == 0
    return "adamw_torch_fused" if works_in_place else "adamw_torch"


def _is_fsdp(launch: TrainingLaunch) -> bool:
    """Return whether FSDP's own checkpointing is on, beside which the Trainer's gathers every layer once more."""
    return launch.layout.framework == "accelerate" and launch.layout.zero_stage > 0


TRANSFORMERS = Target(
    name="transformers",
    is_for=of_stacks("accelerate", "ddp", "deepspeed"),
    why_not=_why_not,
    write=training_arguments,
)
