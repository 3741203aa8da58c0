"""SGLang's server and its options.

Source: python/sglang/srt/server_args.py at 0.5.23, where every option stands; `--enable-dp-attention` is
deprecated there for `--attn-dp-size`, which earlier releases of 0.5 do not have.
"""

from __future__ import annotations

import json

from plimsoll.planners.serving.answer import EngineSettings, ServingPlan
from plimsoll.service.engines.sglang.flags import FLAGS
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
ON_LOADING = {"fp8": "fp8"}
# Formats of the cache that are none of its other values.
CACHE_NAMES = {"fp8": "fp8_e4m3"}
MODULE = "sglang.launch_server"
# Where the nodes meet, as in SGLang's own examples of several nodes.
MEETING_PORT = 20_000
# 0.5.10 requires transformers 5.3, 0.5.6 4.57.
ROPE_PARAMETERS_SINCE = (0, 5, 10)


def sglang_command(checkpoint: Checkpoint, plan: ServingPlan, nodes: Nodes) -> ServingCommand:
    """Return the command, the same on every node; its tensor ranks count attention's data-parallel ones too.

    Raises `NoOption` for a format or a degree that it lacks; a page size that nobody fixed is left to the engine.
    """
    layout, settings = plan.layout, plan.settings
    formats = _format_options(checkpoint, settings)
    is_new = version_numbers(settings.engine_version) >= ROPE_PARAMETERS_SINCE
    changes = config_changes(checkpoint, settings, names_parameters=is_new, states_length=True)
    if layout.decode_context_parallel > 1:
        raise NoOption("SGLang has no decode context parallelism.")
    degrees = above_one(
        FLAGS,
        tensor_parallel=layout.tensor_parallel * layout.attention_data_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        data_parallel=layout.attention_data_parallel,
        expert_ranks=layout.expert_parallel,
    )
    if layout.attention_data_parallel > 1:
        degrees.append(option(FLAGS, "is_attention_data_parallel"))
    overrides = ["--json-model-override-args", json.dumps(changes)] if changes else []
    trust = ["--trust-remote-code"] if checkpoint.needs_own_code else []
    words = [
        *("python", "-m", MODULE, *options(FLAGS, model=checkpoint.name)),
        *(*trust, *formats, *degrees, *overrides),
        *options(
            FLAGS,
            max_model_len=settings.max_model_len,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            **({"block_size": settings.block_size} if settings.is_block_size_fixed else {}),
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
        ),
    ]
    if nodes.count > 1:
        address = f"{nodes.address}:{MEETING_PORT}"
        words += options(FLAGS, nodes=nodes.count, node_rank=nodes.rank, address=address)
    return ServingCommand(words=words)


def _format_options(checkpoint: Checkpoint, settings: EngineSettings) -> list[str]:
    weights, cache = settings.weights, settings.kv_cache
    is_stored = checkpoint.is_stored_as(weights)
    check_loadable("SGLang", checkpoint, weights, (*DTYPES, *ON_LOADING))
    if cache not in (*DTYPES, "fp8") or (weights in DTYPES and cache not in (weights, "fp8")):
        raise NoOption(f"SGLang's command has no option for a cache in {cache} beside weights in {weights}.")
    formats = {"dtype": DTYPES[settings.activations]}
    if weights in ON_LOADING and not is_stored:
        formats["quantization"] = ON_LOADING[weights]
    if cache in CACHE_NAMES:
        formats["kv_cache"] = CACHE_NAMES[cache]
    return options(FLAGS, **formats)


SERVER = Server(
    artifact="sglang",
    command=sglang_command,
    image="lmsysorg/sglang:v{version}",
    listen=("--host", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
    joins_nodes=(0, 5),
)
