"""SGLang's server and its options.

Source: python/sglang/srt/server_args.py at 0.5.23, where every option stands; `--enable-dp-attention` is
deprecated there for `--attn-dp-size`, which earlier releases of 0.5 do not have.
"""

from __future__ import annotations

import json

from plimsoll.planners.serving.answer import EngineSettings, ServingPlan
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.engine import (
    SERVING_PORT,
    Engine,
    Nodes,
    NoOption,
    ServingCommand,
    check_loadable,
    version_numbers,
)
from plimsoll.service.launch.stretched_positions import config_changes
from plimsoll.service.launch.words import above_one, pairs

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ON_LOADING = {"fp8": "fp8"}
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
        ("--tp-size", layout.tensor_parallel * layout.attention_data_parallel),
        ("--pp-size", layout.pipeline_parallel),
        ("--dp-size", layout.attention_data_parallel),
        ("--ep-size", layout.expert_parallel),
    )
    if layout.attention_data_parallel > 1:
        degrees.append("--enable-dp-attention")
    overrides = ["--json-model-override-args", json.dumps(changes)] if changes else []
    trust = ["--trust-remote-code"] if checkpoint.needs_own_code else []
    words = [
        *("python", "-m", "sglang.launch_server", "--model-path", checkpoint.name),
        *(*trust, *formats, *degrees, *overrides),
        *pairs(
            ("--context-length", settings.max_model_len),
            ("--mem-fraction-static", settings.gpu_memory_utilization),
            *([("--page-size", settings.block_size)] if settings.is_block_size_fixed else []),
            ("--chunked-prefill-size", settings.max_num_batched_tokens),
            ("--max-running-requests", settings.max_num_seqs),
        ),
    ]
    if nodes.count > 1:
        words += ["--nnodes", str(nodes.count), "--node-rank", nodes.rank]
        words += ["--dist-init-addr", f"{nodes.address}:{MEETING_PORT}"]
    return ServingCommand(words=words)


def _format_options(checkpoint: Checkpoint, settings: EngineSettings) -> list[str]:
    weights, cache = settings.weights, settings.kv_cache
    is_stored = checkpoint.is_stored_as(weights)
    check_loadable("SGLang", checkpoint, weights, (*DTYPES, *ON_LOADING))
    if cache not in (*DTYPES, "fp8") or (weights in DTYPES and cache not in (weights, "fp8")):
        raise NoOption(f"SGLang's command has no option for a cache in {cache} beside weights in {weights}.")
    options = ["--dtype", DTYPES[settings.activations]]
    if weights in ON_LOADING and not is_stored:
        options += ["--quantization", ON_LOADING[weights]]
    if cache == "fp8":
        options += ["--kv-cache-dtype", "fp8_e4m3"]
    return options


SGLANG = Engine(
    artifact="sglang",
    command=sglang_command,
    image="lmsysorg/sglang:v{version}",
    listen=("--host", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
    joins_nodes=(0, 5),
)
