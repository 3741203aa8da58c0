"""Launch files of a serving plan: the command that starts its engine.

Only what can be made true is made: every degree the plan fixed, and nothing
where a program has no option for what was planned.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planners.serving.answer import ServingPlan

# What `vllm serve --help` calls them. A format that needs a checkpoint made for
# it beforehand has no option, and so no command.
VLLM_WEIGHT_OPTIONS = {
    "fp32": ("--dtype", "float32"),
    "bf16": ("--dtype", "bfloat16"),
    "fp16": ("--dtype", "float16"),
    "fp8": ("--dtype", "bfloat16", "--quantization", "fp8"),
    "nf4": ("--dtype", "bfloat16", "--quantization", "bitsandbytes"),
}
SGLANG_WEIGHT_OPTIONS = {
    "bf16": ("--dtype", "bfloat16"),
    "fp16": ("--dtype", "float16"),
    "fp8": ("--dtype", "bfloat16", "--quantization", "fp8"),
}
ARTIFACT_NAMES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-serve"}
# The cache has the type of the activations unless told otherwise.
VLLM_CACHE_OPTIONS = {
    ("bf16", "bf16"): (),
    ("fp16", "fp16"): (),
    ("fp8", "bf16"): (),
    ("nf4", "bf16"): (),
    ("bf16", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("fp16", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("fp8", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("nf4", "fp8"): ("--kv-cache-dtype", "fp8"),
}


def serving_artifacts(model_name: str, plan: ServingPlan) -> dict[str, str]:
    """Return the launch file of a serving plan, under its program's name, starting one replica.

    Nothing is made for a format the program has no option for, nor for
    transformers, which is no program.
    """
    writers = {"vllm": _vllm_command, "sglang": _sglang_command, "tensorrt-llm": _tensorrt_llm_command}
    writer = writers.get(plan.settings.engine)
    words = None if writer is None else writer(model_name, plan)
    return {} if words is None else {ARTIFACT_NAMES[plan.settings.engine]: shlex.join(words)}


def _vllm_command(model_name: str, plan: ServingPlan) -> list[str] | None:
    """Return `vllm serve` and its options, as vllm/engine/arg_utils.py names them."""
    layout, settings = plan.layout, plan.settings
    options = _vllm_format_options(settings.weights, settings.kv_cache)
    if options is None:
        return None
    degrees = (
        ("--tensor-parallel-size", layout.tensor_parallel),
        ("--pipeline-parallel-size", layout.pipeline_parallel),
        ("--data-parallel-size", layout.attention_data_parallel),
        ("--decode-context-parallel-size", layout.decode_context_parallel),
    )
    words = ["vllm", "serve", model_name, *options, *_above_one(degrees)]
    if layout.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    return words + _pairs(
        ("--max-model-len", settings.max_model_len),
        ("--gpu-memory-utilization", settings.gpu_memory_utilization),
        ("--block-size", settings.block_size),
        ("--max-num-batched-tokens", settings.max_num_batched_tokens),
        ("--max-num-seqs", settings.max_num_seqs),
    )


def _sglang_command(model_name: str, plan: ServingPlan) -> list[str] | None:
    """Return SGLang's server and its options (python/sglang/srt/server_args.py); its tp counts attention ranks too."""
    layout, settings = plan.layout, plan.settings
    options = SGLANG_WEIGHT_OPTIONS.get(settings.weights)
    if options is None:
        return None
    cache = ("--kv-cache-dtype", "fp8_e4m3") if settings.kv_cache == "fp8" else ()
    degrees = (
        ("--tp-size", layout.tensor_parallel * layout.attention_data_parallel),
        ("--pp-size", layout.pipeline_parallel),
        ("--dp-size", layout.attention_data_parallel),
        ("--ep-size", layout.expert_parallel),
    )
    words = ["python", "-m", "sglang.launch_server", "--model-path", model_name, *options, *cache]
    words += _above_one(degrees)
    if layout.attention_data_parallel > 1:
        words.append("--enable-dp-attention")
    return words + _pairs(
        ("--context-length", settings.max_model_len),
        ("--mem-fraction-static", settings.gpu_memory_utilization),
        ("--page-size", settings.block_size),
        ("--chunked-prefill-size", settings.max_num_batched_tokens),
        ("--max-running-requests", settings.max_num_seqs),
    )


def _tensorrt_llm_command(model_name: str, plan: ServingPlan) -> list[str] | None:
    """Return `trtllm-serve` and its options (tensorrt_llm/commands/serve.py).

    It serves a checkpoint in the format of its files, and attention data
    parallelism takes a file of extra options: neither has an option of its own.
    """
    layout, settings = plan.layout, plan.settings
    is_plain = (settings.weights, settings.kv_cache) in (("bf16", "bf16"), ("fp16", "fp16"))
    if layout.attention_data_parallel > 1 or not is_plain:
        return None
    degrees = (
        ("--tp_size", layout.tensor_parallel),
        ("--pp_size", layout.pipeline_parallel),
        ("--ep_size", layout.expert_parallel),
    )
    return [
        *("trtllm-serve", model_name, "--backend", "pytorch"),
        *_above_one(degrees),
        *_pairs(
            ("--max_seq_len", settings.max_model_len),
            ("--kv_cache_free_gpu_memory_fraction", settings.gpu_memory_utilization),
            ("--max_num_tokens", settings.max_num_batched_tokens),
            ("--max_batch_size", settings.max_num_seqs),
        ),
    ]


def _above_one(degrees: Sequence[tuple[str, int]]) -> list[str]:
    return _pairs(*((option, degree) for option, degree in degrees if degree > 1))


def _pairs(*options: tuple[str, float]) -> list[str]:
    return [word for option, value in options for word in (option, str(value))]


def _vllm_format_options(weights: str, kv_cache: str) -> Sequence[str] | None:
    weight_options = VLLM_WEIGHT_OPTIONS.get(weights)
    cache_options = VLLM_CACHE_OPTIONS.get((weights, kv_cache))
    if weight_options is None or cache_options is None:
        return None
    return (*weight_options, *cache_options)
