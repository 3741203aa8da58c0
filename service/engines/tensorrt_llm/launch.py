"""`trtllm-serve`, and its file of options for what has no option of its own.

Sources: tensorrt_llm/commands/serve.py and tensorrt_llm/llmapi/llm_args.py (TorchLlmArgs, KvCacheConfig). A part
of the file replaces what the command line says of it, so the cache is described in the file alone.
"""

from __future__ import annotations

from typing import Any

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.engines.tensorrt_llm.flags import FLAGS
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import (
    SERVING_PORT,
    Nodes,
    NoOption,
    Server,
    ServingCommand,
    check_loadable,
    version_numbers,
)
from plimsoll.service.launch.stretched_positions import config_changes
from plimsoll.service.launch.words import above_one, options
from plimsoll.service.launch.yaml_text import yaml_text

OPTIONS_FILE = "trtllm-options.yaml"
# It serves a checkpoint in the format of its files: 16 bits, or as it was quantized beforehand.
STORED_PLAINLY = ("bf16", "fp16")
# KvCacheConfig.dtype; "auto" is the checkpoint's own.
CACHE_DTYPES = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
# TorchLlmArgs.model_kwargs, what of the checkpoint's config is another; read beside what 1.2 has.
MODEL_KWARGS_SINCE = (1, 2)


def tensorrt_llm_command(checkpoint: Checkpoint, plan: ServingPlan, nodes: Nodes) -> ServingCommand:
    """Return the command and its file; raise `NoOption` for what it cannot be told.

    With attention data parallelism every rank of the tensor group serves requests of
    its own, so none are left to divide an attention layer.
    """
    layout, settings = plan.layout, plan.settings
    if nodes.count > 1:
        raise NoOption("trtllm-serve over several nodes is started by an MPI launcher around it.")
    if layout.attention_data_parallel > 1 and layout.tensor_parallel > 1:
        raise NoOption("trtllm-serve runs attention data parallel on all ranks of a stage or on none.")
    if layout.decode_context_parallel > 1:
        raise NoOption("trtllm-serve has no decode context parallelism.")
    if settings.rope_scaling is not None and version_numbers(settings.engine_version) < MODEL_KWARGS_SINCE:
        raise NoOption("This TensorRT-LLM cannot be told another rope_scaling; releases from 1.2 can.")
    _check_formats(checkpoint, settings.weights, settings.kv_cache)
    degrees = above_one(
        FLAGS,
        tensor_parallel=layout.tensor_parallel * layout.attention_data_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        expert_ranks=layout.expert_parallel,
    )
    trust = ["--trust_remote_code"] if checkpoint.needs_own_code else []
    words = [
        *("trtllm-serve", checkpoint.name, *options(FLAGS, backend="pytorch"), *trust, *degrees),
        *options(
            FLAGS,
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            options_file=OPTIONS_FILE,
        ),
    ]
    return ServingCommand(words=words, files={OPTIONS_FILE: _options_text(checkpoint, plan)})


def _check_formats(checkpoint: Checkpoint, weights: str, cache: str) -> None:
    check_loadable("trtllm-serve", checkpoint, weights, STORED_PLAINLY)
    is_plain = weights in STORED_PLAINLY
    if cache not in CACHE_DTYPES or (is_plain and cache in STORED_PLAINLY and cache != weights):
        raise NoOption(f"trtllm-serve has no option for a cache in {cache} beside weights in {weights}.")


def _options_text(checkpoint: Checkpoint, plan: ServingPlan) -> str:
    settings = plan.settings
    cache: dict[str, Any] = {
        "dtype": CACHE_DTYPES[settings.kv_cache],
        "free_gpu_memory_fraction": settings.gpu_memory_utilization,
    }
    if settings.is_block_size_fixed:
        cache["tokens_per_block"] = settings.block_size
    content: dict[str, Any] = {"kv_cache_config": cache}
    if settings.chunked_prefill:
        content["enable_chunked_prefill"] = True
    if plan.layout.attention_data_parallel > 1:
        content["enable_attention_dp"] = True
    if settings.expert_backend is not None:
        content["moe_config"] = {"backend": settings.expert_backend}
    changes = config_changes(checkpoint, settings, names_parameters=False, states_length=True)
    if changes:
        content["model_kwargs"] = changes
    return yaml_text(content)


SERVER = Server(
    artifact="trtllm-serve",
    command=tensorrt_llm_command,
    # NVIDIA's registry: https://catalog.ngc.nvidia.com/orgs/nvidia/teams/tensorrt-llm/containers/release.
    image="nvcr.io/nvidia/tensorrt-llm/release:{version}.{patch}",
    listen=("--host", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
)
