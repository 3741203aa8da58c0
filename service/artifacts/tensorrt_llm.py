"""`trtllm-serve`, and its file of options for what has no option of its own.

Sources: tensorrt_llm/commands/serve.py and tensorrt_llm/llmapi/llm_args.py (TorchLlmArgs, KvCacheConfig). A part
of the file replaces what the command line says of it, so the cache is described in the file alone.
"""

from __future__ import annotations

from typing import Any

from planners.serving.answer import ServingPlan
from service.artifacts.checkpoint import Checkpoint
from service.artifacts.engine import SERVING_PORT, Engine, Nodes, ServingCommand, version_numbers
from service.artifacts.stretched_positions import config_changes
from service.artifacts.words import above_one, pairs
from service.artifacts.yaml_text import yaml_text

OPTIONS_FILE = "trtllm-options.yaml"
# It serves a checkpoint in the format of its files: 16 bits, or as it was quantized beforehand.
STORED_PLAINLY = ("bf16", "fp16")
# KvCacheConfig.dtype; "auto" is the checkpoint's own.
CACHE_DTYPES = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
# KvCacheConfig.tokens_per_block's default.
DEFAULT_BLOCK_TOKENS = 32
# TorchLlmArgs.model_kwargs, what of the checkpoint's config is another; read beside what 1.2 has.
MODEL_KWARGS_SINCE = (1, 2)


def tensorrt_llm_command(checkpoint: Checkpoint, plan: ServingPlan, nodes: Nodes) -> ServingCommand | None:
    """Return the command and its file; None on several nodes, which need an MPI launcher around it.

    With attention data parallelism every rank of the tensor group serves requests of
    its own, so none are left to divide an attention layer: both at once is None too.
    """
    layout, settings = plan.layout, plan.settings
    is_divided_twice = layout.attention_data_parallel > 1 and layout.tensor_parallel > 1
    if nodes.count > 1 or is_divided_twice or layout.decode_context_parallel > 1:
        return None
    is_stretched = settings.rope_scaling is not None
    if not _has_formats(checkpoint, settings.weights, settings.kv_cache):
        return None
    if is_stretched and version_numbers(settings.engine_version) < MODEL_KWARGS_SINCE:
        return None
    degrees = above_one(
        ("--tp_size", layout.tensor_parallel * layout.attention_data_parallel),
        ("--pp_size", layout.pipeline_parallel),
        ("--ep_size", layout.expert_parallel),
    )
    words = [
        *("trtllm-serve", checkpoint.name, "--backend", "pytorch", *degrees),
        *pairs(
            ("--max_seq_len", settings.max_model_len),
            ("--max_num_tokens", settings.max_num_batched_tokens),
            ("--max_batch_size", settings.max_num_seqs),
            ("--extra_llm_api_options", OPTIONS_FILE),
        ),
    ]
    return ServingCommand(words=words, files={OPTIONS_FILE: _options_text(checkpoint, plan)})


def _has_formats(checkpoint: Checkpoint, weights: str, cache: str) -> bool:
    if checkpoint.is_stored_as(weights) and weights not in STORED_PLAINLY:
        return cache in CACHE_DTYPES
    if weights not in STORED_PLAINLY or not checkpoint.can_become(weights):
        return False
    return cache == weights or (cache in CACHE_DTYPES and cache not in STORED_PLAINLY)


def _options_text(checkpoint: Checkpoint, plan: ServingPlan) -> str:
    settings = plan.settings
    cache: dict[str, Any] = {
        "dtype": CACHE_DTYPES[settings.kv_cache],
        "free_gpu_memory_fraction": settings.gpu_memory_utilization,
    }
    if settings.block_size != DEFAULT_BLOCK_TOKENS:
        cache["tokens_per_block"] = settings.block_size
    options: dict[str, Any] = {"kv_cache_config": cache}
    if plan.layout.attention_data_parallel > 1:
        options["enable_attention_dp"] = True
    changes = config_changes(checkpoint, settings, names_parameters=False, states_length=True)
    if changes:
        options["model_kwargs"] = changes
    return yaml_text(options)


TENSORRT_LLM = Engine(
    artifact="trtllm-serve",
    command=tensorrt_llm_command,
    # NVIDIA's registry: https://catalog.ngc.nvidia.com/orgs/nvidia/teams/tensorrt-llm/containers/release.
    image="nvcr.io/nvidia/tensorrt-llm/release:{version}.0",
    listen=("--host", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
)
