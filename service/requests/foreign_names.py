"""What other programs call the fields and values of a request, so that a refusal can say what they are called here.

Names are those of transformers' TrainingArguments, DeepSpeed's config, torchtitan's and torchtune's configs, Megatron's
options, PyTorch's launcher, and vLLM's and SGLang's options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from plimsoll.planners.stacks.folders import shipped

# Of difflib: `bf16-mixd` is 0.95 like `bf16-mixed`, and `lamb` 0.5 like `adamw`.
MISSPELT = 0.75
SIZES = re.compile(r"(_model)?(_parallel)?_(size|degree)$")
QUOTED = re.compile(r"'([^']+)'")

MICRO_BATCH = "/training/micro_batch_size"
BATCH = "/training/global_batch_size"
LENGTH = "/training/sequence_length"
PRECISION = "/training/precision"
RECOMPUTE = "/training/recompute"
TOKENS = "/training/tokens"
GPUS = "/hardware/gpus"
WEIGHTS = "/serving/weights"
FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch"), (MICRO_BATCH,)),
    **dict.fromkeys(("train_batch_size", "effective_batch_size"), (BATCH,)),
    "local_batch_size": (BATCH, MICRO_BATCH),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "seq_len", "seq_length", "max_length", "cutoff_len"), (LENGTH,)),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing", "activation_checkpoint"), (RECOMPUTE,)),
    **dict.fromkeys(("bf16", "fp16", "fp8", "mixed_precision"), (PRECISION,)),
    **dict.fromkeys(("dtype", "torch_dtype"), (PRECISION, WEIGHTS)),
    **dict.fromkeys(("lora_rank", "lora_r", "r"), ("/training/lora/rank",)),
    **dict.fromkeys(("load_in_4bit", "quantization"), ("/training/method", WEIGHTS)),
    "kv_cache_dtype": ("/serving/kv_cache",),
    **dict.fromkeys(("max_tokens", "max_new_tokens"), ("/serving/output_tokens",)),
    **dict.fromkeys(("batch_size", "max_batch_size"), ("/serving/concurrency",)),
    "framework": ("/serving/engine",),
    **dict.fromkeys(("num_train_epochs", "epochs", "max_steps", "train_iters", "num_train_steps"), (TOKENS,)),
    **dict.fromkeys(("attn_implementation", "flash_attention", "flash_attn"), ("/training/attention",)),
    **dict.fromkeys(("fsdp", "zero_optimization", "sharding_strategy", "deepspeed"), ("/layout/zero_stage",)),
    **dict.fromkeys(("data_parallel_shard_degree", "data_parallel_replicate_degree"), ("/layout/shard_group",)),
    "overlap_grad_reduce": ("/layout/overlap/gradients",),
    "overlap_param_gather": ("/layout/overlap/parameters",),
    **dict.fromkeys(("tp_comm_overlap", "enable_async_tensor_parallel"), ("/layout/overlap/tensor_parallel",)),
    **dict.fromkeys(("overlap_moe_expert_parallel_comm", "moe_a2a_overlap"), ("/layout/overlap/expert_parallel",)),
    **dict.fromkeys(("vpp", "num_layers_per_virtual_pipeline_stage"), ("/layout/virtual_pipeline",)),
    **dict.fromkeys(("world_size", "num_devices", "devices", "count"), (GPUS,)),
    **dict.fromkeys(("nodes", "num_nodes", "nnodes"), (GPUS, "/hardware/gpus_per_node")),
    "nproc_per_node": ("/hardware/gpus_per_node",),
}
WITHOUT_EFFECT = ("learning_rate", "lr", "lr_scheduler_type", "warmup_steps", "weight_decay", "seed", "lora_alpha")
EXPLAINED: Mapping[str, str] = {
    **dict.fromkeys(WITHOUT_EFFECT, "neither memory nor time depends on it, so leave it out"),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "gradient_accumulation"),
        "it follows from global_batch_size, micro_batch_size and data_parallel",
    ),
}
VALUES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("adam", "adamw-torch", "adamw-torch-fused", "adamw-hf", "fused-adam"), ("adamw",)),
    **dict.fromkeys(("adam-8bit", "adam8bit", "adamw8bit", "adamw-bnb-8bit"), ("adamw-8bit",)),
    "paged-adamw-32bit": ("paged-adamw",),
    "sgdm": ("sgd-momentum",),
    **dict.fromkeys(("bfloat16", "mixed"), ("bf16-mixed", "bf16")),
    **dict.fromkeys(("fp16", "float16", "half"), ("fp16-mixed",)),
    **dict.fromkeys(("fp8", "float8"), ("fp8-mixed",)),
    "float32": ("fp32",),
    # Checkpoints of AWQ and GPTQ hold 4-bit integers.
    **dict.fromkeys(("awq", "gptq", "awq-marlin", "gptq-marlin"), ("int4",)),
    **dict.fromkeys(("sft", "fft", "full-finetune", "full-finetuning", "pretrain", "pretraining"), ("full",)),
}


def said_here(name: str, paths: tuple[str, ...]) -> list[str]:
    """Return the pointers of what a field of another program is here, among those that the request has."""
    return [path for path in FIELDS.get(name, ()) if path in paths]


def format_meant(given: object, paths: list[str]) -> str:
    """Return the weight format that a foreign name is here, as ` 'int4'`, where the field meant is that of weights."""
    if paths != [WEIGHTS] or not isinstance(given, str):
        return ""
    found = VALUES.get(_normalized(given), ())
    return f" {found[0]!r}" if len(found) == 1 else ""


def _normalized(given: str) -> str:
    return re.sub(r"[_\s]", "-", given.strip().lower())


def without_size(name: str) -> str:
    """Return `tp` of `tp_size` and `tensor` of `tensor_model_parallel_size`."""
    return SIZES.sub("", name)


def value_meant(given: object, expected: str) -> str:
    """Return which of the quoted values was meant, as a question; empty where none is near."""
    if not isinstance(given, str):
        return ""
    known, name = QUOTED.findall(expected), _normalized(given)
    called_so = (*VALUES.get(name, ()), *shipped().names_meant().get(name, ()))
    meant = [value for value in (name, *called_so) if value in known]
    meant = meant or get_close_matches(name[:100], known, 1, MISSPELT)
    return f" Did you mean {' or '.join(repr(value) for value in meant)}?" if meant else ""
