"""`vllm serve` and its options.

Sources: vllm/engine/arg_utils.py, vllm/config and vllm/entrypoints/cli/serve.py, read in the releases 0.10.2,
0.11.2, 0.12.0, 0.27.1, 0.28.0 and 0.33.0. All have every option but these: `--decode-context-parallel-size` is in
0.10.2 and `--nnodes`, `--node-rank` and `--master-addr` in 0.11.2, so that the next minor's first release has them.
0.27.1 lists bitsandbytes and 0.28.0 no longer does (vllm-project/vllm#43529: a plugin, which the images do not carry).
"""

from __future__ import annotations

import json

from plimsoll.planners.serving.answer import EngineSettings, ServingLayout, ServingPlan
from plimsoll.service.engines.vllm.flags import FLAGS
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
from plimsoll.service.workloads.commands.flags import option

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# The newest patch of each minor version that has any: vllm's releases on PyPI.
NEWEST_PATCHES = {
    "0.8": 5, "0.9": 2, "0.10": 2, "0.11": 2, "0.14": 1, "0.15": 1, "0.17": 1, "0.18": 1, "0.19": 1, "0.20": 2,
    "0.22": 1, "0.25": 1, "0.27": 1,
}  # fmt: skip
BITSANDBYTES_UNTIL = (0, 28)
DECODE_CONTEXT_PARALLEL_SINCE = (0, 11)
NODES_SINCE = (0, 12)
# vllm/transformers_utils/config.py, patch_rope_parameters.
ROPE_PARAMETERS_SINCE = (0, 12)


def on_loading(version: str) -> dict[str, str]:
    """Return what that version quantizes a checkpoint of 16 bits to while it loads, by its own names."""
    has_bitsandbytes = version_numbers(version) < BITSANDBYTES_UNTIL
    return {"fp8": "fp8", **({"nf4": "bitsandbytes"} if has_bitsandbytes else {})}


def vllm_command(checkpoint: Checkpoint, plan: ServingPlan, nodes: Nodes) -> ServingCommand:
    """Return the command, on several nodes of each of them; raise `NoOption` for a format or a degree it lacks.

    A block size that nobody fixed is left to the engine, whose choice of kernels it would narrow.
    """
    layout, settings = plan.layout, plan.settings
    formats = _format_options(checkpoint, settings)
    degrees = _degree_options(layout, version_numbers(settings.engine_version))
    changes = config_changes(
        checkpoint, settings, names_parameters=version_numbers(settings.engine_version) >= ROPE_PARAMETERS_SINCE
    )
    overrides = ["--hf-overrides", json.dumps(changes)] if changes else []
    trust = ["--trust-remote-code"] if checkpoint.needs_own_code else []
    whole = ["--no-enable-chunked-prefill"] if settings.chunked_prefill is False else []
    words = [
        *("vllm", "serve", checkpoint.name, *trust, *formats, *degrees, *overrides, *whole),
        *options(
            FLAGS,
            max_model_len=settings.max_model_len,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            **({"block_size": settings.block_size} if settings.is_block_size_fixed else {}),
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
        ),
    ]
    if nodes.count == 1:
        return ServingCommand(words=words)
    if version_numbers(settings.engine_version) < NODES_SINCE:
        # The nodes are a Ray cluster then, started beforehand; the command stands on one of them.
        return ServingCommand(words=[*words, *options(FLAGS, executor="ray")])
    if layout.attention_data_parallel > 1:
        raise NoOption(
            "vLLM's attention data parallelism over several nodes is started node by node, each its own way."
        )
    joined = options(FLAGS, nodes=nodes.count, address=nodes.address)
    return ServingCommand(
        words=[*words, *joined, *options(FLAGS, node_rank=0)],
        worker_words=[*words, *joined, *options(FLAGS, node_rank=nodes.rank), option(FLAGS, "headless")],
    )


def _format_options(checkpoint: Checkpoint, settings: EngineSettings) -> list[str]:
    weights, cache = settings.weights, settings.kv_cache
    _check_cache(weights, cache)
    is_stored, quantized = checkpoint.is_stored_as(weights), on_loading(settings.engine_version)
    check_loadable(f"vLLM {settings.engine_version}", checkpoint, weights, (*DTYPES, *quantized))
    formats = {"dtype": DTYPES[settings.activations]}
    if weights in quantized and not is_stored:
        formats["quantization"] = quantized[weights]
    if cache == "fp8":
        formats["kv_cache"] = cache
    return options(FLAGS, **formats)


def _check_cache(weights: str, cache: str) -> None:
    """Raise `NoOption` for a cache that is neither in the activations' format nor in fp8."""
    if cache not in (*DTYPES, "fp8") or (weights in DTYPES and cache not in (weights, "fp8")):
        raise NoOption(f"vLLM's command has no option for a cache in {cache} beside weights in {weights}.")


def _degree_options(layout: ServingLayout, version: tuple[int, ...]) -> list[str]:
    if layout.decode_context_parallel > 1 and version < DECODE_CONTEXT_PARALLEL_SINCE:
        raise NoOption("This vLLM has no decode context parallelism; releases from 0.11 have.")
    # A switch: experts are spread over all tensor- and data-parallel ranks, or not at all.
    ranks = layout.tensor_parallel * layout.attention_data_parallel
    if layout.expert_parallel not in (1, ranks):
        raise NoOption(f"vLLM spreads experts over all {ranks} ranks or over none, not over {layout.expert_parallel}.")
    degrees = above_one(
        FLAGS,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        data_parallel=layout.attention_data_parallel,
        decode_context_parallel=layout.decode_context_parallel,
    )
    return [*degrees, option(FLAGS, "expert_parallel")] if layout.expert_parallel > 1 else degrees


SERVER = Server(
    artifact="vllm",
    command=vllm_command,
    # Tags at https://hub.docker.com/r/vllm/vllm-openai.
    image="vllm/vllm-openai:v{version}.{patch}",
    rocm_image="vllm/vllm-openai-rocm:v{version}.{patch}",
    # docs/getting_started/installation/gpu.rocm.inc.md names it at 0.16 and not at 0.14.
    rocm_since=(0, 16),
    newest_patches=NEWEST_PATCHES,
    listen=("--host", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
    joins_nodes=NODES_SINCE,
)
