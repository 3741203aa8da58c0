"""Commands of scripts around Hugging Face's Trainer, read as a request to `/plan/train`.

Sources: transformers' TrainingArguments and TRL's ModelConfig; accelerate's commands/launch.py.
What stands in a file of DeepSpeed's or Accelerate's is read by `files`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from plimsoll.planners.ground.terms import HIGHEST_ZERO_STAGE, NVME
from plimsoll.service.stacks.accelerate.files import values_of_accelerate
from plimsoll.service.stacks.deepspeed.command import NO_DEVICE, values_of_deepspeed
from plimsoll.service.stacks.stack import CommandReader, Job, Words
from plimsoll.service.workloads.commands.flags import Flag, options_unseen, read_flags
from plimsoll.service.workloads.commands.launches import Launch, NotRead
from plimsoll.service.workloads.commands.option_files import OptionsFileNotRead
from plimsoll.service.workloads.objects.pods import Container

MARKS = ("model_name_or_path", "per_device_train_batch_size")

# TRL's, LLaMA-Factory's and the examples' names for the longest sequence; a block is always full.
LENGTH_FLAGS = ("max-seq-length", "max-length", "model-max-length", "cutoff-len")
LAUNCHER_FLAGS = (
    Flag(names=("num-processes",), field="all", form="whole"),
    Flag(names=("num-machines",), field="nodes", form="whole"),
)
TRAINER_FLAGS = (
    Flag(names=("model-name-or-path",), field="model", form="text"),
    Flag(names=("per-device-train-batch-size",), field="micro_batch_size", form="whole"),
    Flag(names=("gradient-accumulation-steps",), field="accumulation", form="whole"),
    Flag(names=LENGTH_FLAGS, field="sequence_length", form="whole"),
    Flag(names=("block-size",), field="block_size", form="whole"),
    Flag(names=("packing",), field="packing", form="switch"),
    Flag(names=("auto-find-batch-size",), field="finds_batch_size", form="switch"),
    Flag(names=("torch-dtype", "dtype", "model-dtype"), field="weights_dtype", form="text"),
    Flag(names=("bf16",), field="bf16", form="switch"),
    Flag(names=("fp16",), field="fp16", form="switch"),
    Flag(names=("gradient-checkpointing",), field="gradient_checkpointing", form="switch"),
    Flag(names=("optim",), field="optimizer", form="text"),
    Flag(names=("use-peft",), field="use_peft", form="switch"),
    Flag(names=("lora-r", "lora-rank"), field="lora_rank", form="whole"),
    Flag(names=("lora-dropout",), field="lora_dropout", form="number"),
    Flag(names=("load-in-4bit",), field="load_in_4bit", form="switch"),
    Flag(names=("stage",), field="llama_factory_stage", form="text"),
    Flag(names=("finetuning-type",), field="finetuning_type", form="text"),
    Flag(names=("quantization-bit",), field="quantization_bit", form="whole"),
    Flag(names=("use-lora", "lora-enable"), field="use_lora", form="switch"),
    Flag(names=("q-lora",), field="q_lora", form="switch"),
    Flag(names=("fsdp",), field="fsdp", form="text"),
    Flag(names=("deepspeed", "deepspeed-config", "deepspeed-config-file"), field="deepspeed_file", form="text"),
    Flag(names=("config-file",), field="accelerate_file", form="text"),
    Flag(names=("use-fsdp",), field="use_fsdp", form="switch"),
    Flag(names=("fsdp-sharding-strategy",), field="fsdp_strategy", form="text"),
    Flag(names=("fsdp-reshard-after-forward",), field="fsdp_reshards", form="text"),
    Flag(names=("fsdp-offload-params",), field="fsdp_offload", form="switch"),
    Flag(names=("fsdp-activation-checkpointing",), field="gradient_checkpointing", form="switch"),
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

# Flags outside the table that change what is trained or how it is divided, by what their names begin with or hold.
DECISIVE = re.compile(r"lora|peft|adapter|freeze|8bit|use-megatron-lm|parallelism-config|tensor-parallel|fsdp-config")
# Those that leave a rank less than is counted: fused losses, activations kept on the host, layers one by one.
MEMORY_SAVING = re.compile(
    r"^(?:use-liger|enable-liger|liger|use-unsloth|activation-offloading|use-galore|use-apollo|use-badam|use-lomo"
    r"|sequence-parallel|ulysses|context-parallel|cp-size|loss-chunk|use-cce)"
)
# Those of them that only say how an adapter is made, which its rank stands for.
OF_ADAPTERS = re.compile(r"^(?:lora|peft|adapter)-")
# LLaMA-Factory's own default (hparams/finetuning_args.py).
LLAMA_FACTORY_TYPE = "lora"
FOUR_BITS = 4
TRL_DROPOUT = 0.05
AS_STORED = "auto"
# No sample of a batch is shorter, and nothing says that one is longer.
SHORTEST_SAMPLE_TOKENS = 1
NO_LENGTH = "the command does not say how many tokens a sample has"
LEANER_WORDS = (
    "A script that loads its weights in 16 bits, recomputes, shards or meets short samples only, which the command "
    "does not say, may fit."
)
Values: TypeAlias = Mapping[str, Any]


def _is_trainers(words: Words) -> bool:
    return any(word.lstrip("-").replace("-", "_").startswith(MARKS) for word in words if word.startswith("--"))


def _trainer_launch(job: Job) -> Launch | NotRead:
    words, gpus = job.words, job.gpus
    read = read_flags(words[1:], TRAINER_FLAGS)
    if read.problems:
        return NotRead(reason="; ".join(read.problems))
    unseen = options_unseen(read)
    if unseen is not None:
        return unseen
    try:
        values = _with_files(read.values, job.container)
    except OptionsFileNotRead as error:
        return NotRead(reason=f"the parallelism stands in a file: {error}")
    if "model" not in values:
        return NotRead(reason="the command does not say which model it trains")
    says_length = "sequence_length" in values or "block_size" in values
    optimizer = str(values.get("optimizer", "adamw_torch"))
    if optimizer not in OPTIMIZERS:
        return NotRead(reason=f"--optim {optimizer[:40]} is no optimizer this service knows")
    method = _method(values, read.others)
    if isinstance(method, NotRead):
        return method
    layout = _trainer_layout(values, gpus)
    if isinstance(layout, NotRead):
        return layout
    training = {**method, "optimizer": OPTIMIZERS[optimizer], **_steps(values, gpus)}
    framework = "deepspeed" if values.get("use_deepspeed") else "accelerate"
    request = {"model": values["model"], "training": training, "layout": layout, "framework": framework}
    return Launch(
        program=f"training of {values['model']}",
        kind="train",
        request=request,
        leaner=(_leaner(request, values, gpus, is_accelerate=words[0].rpartition("/")[2] == "accelerate"),),
        leaner_words=LEANER_WORDS,
        memory_saving=tuple(name for name in read.others if MEMORY_SAVING.match(name.lstrip("-").replace("_", "-"))),
        unsaid="" if says_length else NO_LENGTH,
    )


def _steps(values: Values, gpus: int) -> dict[str, Any]:
    micro_batch = int(values.get("micro_batch_size", 8))  # TrainingArguments' own default
    return {
        "precision": _precision(values),
        "sequence_length": values.get("block_size", values.get("sequence_length", SHORTEST_SAMPLE_TOKENS)),
        "micro_batch_size": micro_batch,
        "global_batch_size": micro_batch * int(values.get("accumulation", 1)) * gpus,
        "recompute": "full" if values.get("gradient_checkpointing") else "none",
    }


def _leaner(request: dict[str, Any], values: Values, gpus: int, *, is_accelerate: bool) -> dict[str, Any]:
    """Return the job as a script may run it within the command: the Trainer's flags are not all that decides.

    Since transformers 5 weights are loaded in the checkpoint's own type, and since
    TRL 0.24 SFT recomputes by default. A length bounds samples that are not packed.
    `accelerate launch` without a config has one of the image's own, where there is one.
    """
    training, layout = dict(request["training"]), dict(request["layout"])
    if "gradient_checkpointing" not in values:
        training["recompute"] = "full"
    is_half = training["precision"] != "fp16-mixed" and not values.get("use_deepspeed")
    if is_half and values.get("weights_dtype", AS_STORED) == AS_STORED:
        training["precision"] = "bf16"
    if "block_size" not in values and not values.get("packing"):
        training["sequence_length"] = SHORTEST_SAMPLE_TOKENS
    if values.get("finds_batch_size"):
        training |= {"micro_batch_size": 1, "global_batch_size": gpus}
    if is_accelerate and layout["zero_stage"] == 0 and "accelerate_file" not in values:
        layout |= {"zero_stage": 3}
    return {**request, "training": training, "layout": layout}


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
    """Return the precision; weights that are loaded in 16 bits have no other copy, but for DeepSpeed's."""
    if values.get("bf16") or values.get("mixed_precision") == "bf16":
        is_pure = values.get("weights_dtype") in ("bfloat16", "bf16") and not values.get("use_deepspeed")
        return "bf16" if is_pure else "bf16-mixed"
    if values.get("fp16") or values.get("mixed_precision") == "fp16":
        return "fp16-mixed"
    return "bf16" if values.get("weights_dtype") in ("bfloat16", "bf16") else "fp32"


def _method(values: Values, others: tuple[str, ...]) -> dict[str, Any] | NotRead:
    """Return what is trained: all weights, or adapters, by the names of TRL, LLaMA-Factory, FastChat and LLaVA."""
    kind = values.get("finetuning_type", LLAMA_FACTORY_TYPE if "llama_factory_stage" in values else None)
    if kind not in (None, "full", "lora"):
        return NotRead(reason=f"--finetuning_type {str(kind)[:40]} is no method this service knows")
    has_adapters = kind == "lora" or any(values.get(name) for name in ("use_peft", "use_lora", "q_lora"))
    names = [name.lstrip("-").replace("_", "-") for name in others]
    for name in names:
        if DECISIVE.search(name) and not (has_adapters and OF_ADAPTERS.match(name)):
            return NotRead(reason=f"--{name[:60]} changes what is trained or how it is divided, and is not read")
    rank = values.get("lora_rank")
    if not has_adapters:
        if rank is not None:
            return NotRead(reason="--lora_r stands without a flag that says whether adapters are trained")
        return {"method": "full"}
    in_four_bits = values.get("load_in_4bit") or values.get("q_lora") or values.get("quantization_bit") == FOUR_BITS
    # TRL 1.16, trl/trainer/model_config.py: lora_dropout is 0.05 by default.
    dropout = values.get("lora_dropout", TRL_DROPOUT if values.get("use_peft") else None)
    said = {name: value for name, value in (("rank", rank), ("dropout", dropout)) if value is not None}
    return {"method": "qlora" if in_four_bits else "lora", **({"lora": said} if said else {})}


def _trainer_layout(values: Values, gpus: int) -> dict[str, Any] | NotRead:
    layout: dict[str, Any] = {"data_parallel": gpus, "tensor_parallel": 1, "pipeline_parallel": 1, "offload": "none"}
    if values.get("use_deepspeed"):
        return _of_deepspeed(values, layout)
    resharded = "shard_grad_op" if str(values.get("fsdp_reshards", "")).lower() == "false" else "full_shard"
    strategy = str(values.get("fsdp") or values.get("fsdp_strategy") or (resharded if values.get("use_fsdp") else ""))
    if not strategy:
        return {**layout, "zero_stage": 0}
    name = strategy.split()[0].lower()
    if name not in ZERO_STAGES:
        return NotRead(reason=f"the FSDP strategy {name[:40]} is none this service knows")
    if values.get("fsdp_offload") or "offload" in strategy.lower().split():
        layout["offload"] = "optimizer+parameters"
    return {**layout, "zero_stage": ZERO_STAGES[name]}


def _of_deepspeed(values: Values, layout: dict[str, Any]) -> dict[str, Any] | NotRead:
    layout["zero_stage"] = int(values.get("zero_stage", 2))  # accelerate launch's own default
    if layout["zero_stage"] == HIGHEST_ZERO_STAGE:
        layout["secondary_shard_group"] = max(int(values.get("secondary_group", 1)), 1)
    of_parameters, of_optimizer = (
        str(values.get(name, NO_DEVICE)) for name in ("offload_parameters", "offload_optimizer")
    )
    if of_parameters != NO_DEVICE:
        layout["offload"] = "optimizer+parameters"
    elif of_optimizer != NO_DEVICE:
        layout["offload"] = "optimizer"
    devices = {of_parameters, of_optimizer} - {NO_DEVICE}
    if NVME in devices:
        if len(devices) > 1:
            return NotRead(reason="it offloads parameters and optimizer to different devices, which is not planned")
        layout["offload_target"] = NVME
    return layout


# Scripts of any stack may take the Trainer's arguments.
READER = CommandReader(reads=_is_trainers, read=_trainer_launch, asked_last=True)
