"""Launch commands of training stacks, read as a request to `/plan/train`.

Sources: megatron/training/arguments.py; transformers' TrainingArguments and TRL's ModelConfig; accelerate's
commands/launch.py; deepspeed/launcher/runner.py; torch/distributed/run.py.
What stands in a file of DeepSpeed's or Accelerate's is read by `training_files`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from service.admission.flags import Flag, read_flags
from service.admission.launches import Launch, NotRead
from service.admission.megatron_commands import megatron_launch
from service.admission.option_files import OptionsFileNotRead
from service.admission.training_files import values_of_accelerate, values_of_deepspeed
from service.admission.workloads import Container

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
PYTHON = re.compile(r"^python[0-9.]*$")
MEGATRON_MARK = re.compile(r"^--(tensor-model-parallel-size|num-layers)(=|$)")
TRAINER_MARKS = ("model_name_or_path", "per_device_train_batch_size")

# TRL's, LLaMA-Factory's and the examples' names for the longest sequence.
LENGTH_FLAGS = ("max-seq-length", "max-length", "model-max-length", "cutoff-len", "block-size")
TRAINER_FLAGS = (
    Flag(names=("model-name-or-path",), field="model", form="text"),
    Flag(names=("per-device-train-batch-size",), field="micro_batch_size", form="whole"),
    Flag(names=("gradient-accumulation-steps",), field="accumulation", form="whole"),
    Flag(names=LENGTH_FLAGS, field="sequence_length", form="whole"),
    Flag(names=("bf16",), field="bf16", form="switch"),
    Flag(names=("fp16",), field="fp16", form="switch"),
    Flag(names=("gradient-checkpointing",), field="gradient_checkpointing", form="switch"),
    Flag(names=("optim",), field="optimizer", form="text"),
    Flag(names=("use-peft",), field="use_peft", form="switch"),
    Flag(names=("lora-r", "lora-rank"), field="lora_rank", form="whole"),
    Flag(names=("load-in-4bit",), field="load_in_4bit", form="switch"),
    Flag(names=("fsdp",), field="fsdp", form="text"),
    Flag(names=("deepspeed", "deepspeed-config", "deepspeed-config-file"), field="deepspeed_file", form="text"),
    Flag(names=("config-file",), field="accelerate_file", form="text"),
    Flag(names=("use-fsdp",), field="use_fsdp", form="switch"),
    Flag(names=("fsdp-sharding-strategy",), field="fsdp_strategy", form="text"),
    Flag(names=("mixed-precision",), field="mixed_precision", form="text"),
    Flag(names=("use-deepspeed",), field="use_deepspeed", form="switch"),
    Flag(names=("zero-stage",), field="zero_stage", form="whole"),
    Flag(names=("offload-optimizer-device",), field="offload_optimizer", form="text"),
    Flag(names=("offload-param-device",), field="offload_parameters", form="text"),
)  # fmt: skip
# transformers.training_args.OptimizerNames by what this service calls them; the default since 4.46 is the fused AdamW.
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit", "paged_adamw": "paged-adamw", "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adamw-8bit", "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip
# TrainingArguments.fsdp and accelerate's --fsdp_sharding_strategy, by number or by name.
ZERO_STAGES = {
    "full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "1": 3, "2": 2, "3": 0, "4": 3,
}  # fmt: skip

Values: TypeAlias = Mapping[str, Any]


def training_launch(words: tuple[str, ...], gpus: int, container: Container) -> Launch | NotRead | None:
    """Return what a command would train on `gpus` GPUs, what is missing, or None where it trains nothing we know."""
    if not _is_launcher(words):
        return None
    if any(MEGATRON_MARK.match(word.replace("_", "-")) for word in words):
        return megatron_launch(words, gpus)
    if any(word.lstrip("-").replace("-", "_").startswith(TRAINER_MARKS) for word in words if word.startswith("--")):
        return _trainer_launch(words, gpus, container)
    if PYTHON.match(words[0].rpartition("/")[2]):
        return None
    return NotRead(reason=f"{words[0][:60]} starts a script whose arguments name no model")


def _is_launcher(words: tuple[str, ...]) -> bool:
    program = words[0].rpartition("/")[2]
    return program in LAUNCHERS or bool(PYTHON.match(program))


def _trainer_launch(words: tuple[str, ...], gpus: int, container: Container) -> Launch | NotRead:
    read = read_flags(words[1:], TRAINER_FLAGS)
    if read.problems:
        return NotRead(reason="; ".join(read.problems))
    try:
        values = _with_files(read.values, container)
    except OptionsFileNotRead as error:
        return NotRead(reason=f"the parallelism stands in a file: {error}")
    missing = [name for name in ("model", "sequence_length") if name not in values]
    if missing:
        return NotRead(reason=f"the command does not say: {', '.join(missing)}")
    optimizer = str(values.get("optimizer", "adamw_torch"))
    if optimizer not in OPTIMIZERS:
        return NotRead(reason=f"--optim {optimizer[:40]} is no optimizer this service knows")
    layout = _trainer_layout(values, gpus)
    if isinstance(layout, NotRead):
        return layout
    micro_batch = int(values.get("micro_batch_size", 8))  # TrainingArguments' own default
    return Launch(
        program=f"training of {values['model']}",
        kind="train",
        request={
            "model": values["model"],
            "training": {
                **_method(values),
                "precision": _precision(values),
                "optimizer": OPTIMIZERS[optimizer],
                "sequence_length": values["sequence_length"],
                "micro_batch_size": micro_batch,
                "global_batch_size": micro_batch * int(values.get("accumulation", 1)) * gpus,
                "recompute": "full" if values.get("gradient_checkpointing") else "none",
            },
            "layout": layout,
            "framework": "deepspeed" if values.get("use_deepspeed") else "accelerate",
        },
    )


def _with_files(values: Values, container: Container) -> Values:
    """Return the values with those of the files that they name; the command's own come first, as both programs do.

    Raises OptionsFileNotRead.
    """
    if "accelerate_file" in values:
        values = {**values_of_accelerate(str(values["accelerate_file"]), container), **values}
    if "deepspeed_file" in values:
        values = {**values_of_deepspeed(str(values["deepspeed_file"]), container), **values}
    return values


def _precision(values: Values) -> str:
    if values.get("bf16") or values.get("mixed_precision") == "bf16":
        return "bf16-mixed"
    return "fp16-mixed" if values.get("fp16") or values.get("mixed_precision") == "fp16" else "fp32"


def _method(values: Values) -> dict[str, Any]:
    if not values.get("use_peft"):
        return {"method": "full"}
    method = "qlora" if values.get("load_in_4bit") else "lora"
    rank = values.get("lora_rank")
    return {"method": method, **({"lora": {"rank": rank}} if rank is not None else {})}


def _trainer_layout(values: Values, gpus: int) -> dict[str, Any] | NotRead:
    layout: dict[str, Any] = {"data_parallel": gpus, "tensor_parallel": 1, "pipeline_parallel": 1, "offload": "none"}
    if values.get("use_deepspeed"):
        layout["zero_stage"] = int(values.get("zero_stage", 2))  # accelerate launch's own default
        if str(values.get("offload_parameters", "none")) != "none":
            layout["offload"] = "optimizer+parameters"
        elif str(values.get("offload_optimizer", "none")) != "none":
            layout["offload"] = "optimizer"
        return layout
    strategy = str(
        values.get("fsdp") or values.get("fsdp_strategy") or ("full_shard" if values.get("use_fsdp") else "")
    )
    if not strategy:
        return {**layout, "zero_stage": 0}
    name = strategy.split()[0].lower()
    if name not in ZERO_STAGES:
        return NotRead(reason=f"the FSDP strategy {name[:40]} is none this service knows")
    if values.get("fsdp_offload"):
        layout["offload"] = "optimizer+parameters"
    return {**layout, "zero_stage": ZERO_STAGES[name]}
