"""Commands that start vLLM: its own, and that of KServe's server for Hugging Face's checkpoints.

Sources: vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py; kserve,
python/huggingfaceserver/__main__.py.
"""

from __future__ import annotations

from plimsoll.service.engines.command import EngineCommand, named_degrees
from plimsoll.service.engines.vllm.flags import FLAGS
from plimsoll.service.engines.vllm.nodes import node_rules, ranks_of_node
from plimsoll.service.engines.vllm.rules import at_odds, unknown_options
from plimsoll.service.workloads.commands.flags import Arguments, Flag


def _layout(read: Arguments) -> dict[str, int]:
    """Return the degrees of a command.

    Data parallelism divides attention alone where experts are parallel, over all tensor- and
    data-parallel ranks; else its ranks are replicas, and experts are divided as all else is.
    """
    layout = {**named_degrees(read), "expert_parallel": 1}
    if not read.values.get("expert_parallel"):
        return layout
    ranks = layout.pop("data_parallel", 1)
    layout |= {"attention_data_parallel": ranks} if ranks > 1 else {}
    layout["expert_parallel"] = layout["tensor_parallel"] * ranks
    return layout


# vLLM's own, and the production stack's build of them (docker/Dockerfile of LMCache).
STARTING_IMAGES = frozenset({"vllm/vllm-openai", "vllm/vllm-openai-rocm", "lmcache/vllm-openai"})
VLLM = EngineCommand(
    program="vllm",
    engine="vllm",
    flags=FLAGS,
    uncounted=frozenset({
        "--speculative-config", "--enable-lora", "--enforce-eager", "--kv-transfer-config",
        "--num-gpu-blocks-override", "--compilation-config", "--kv-cache-memory-bytes",
    }),
    overriding=frozenset({
        "--cpu-offload-params", "--offload-backend", "--offload-group-size", "--offload-params",
        "--hf-overrides", "--prefill-context-parallel-size",
    }),
    multi_node=frozenset({
        "--nnodes", "-n", "--node-rank", "-r", "--headless", "--data-parallel-size-local", "-dpl",
        "--data-parallel-address", "-dpa", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr",
        "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe",
    }),
    memory_saving=frozenset({
        "--enforce-eager", "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--compilation-config", "-cc",
        "--optimization-level", "-O", "--cuda-graph-sizes", "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size", "--language-model-only", "--limit-mm-per-prompt", "--skip-mm-profiling",
    }),
    cache_dtypes={
        "auto": None, "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    },
    layout=_layout,
    starts=(("vllm", "serve"),),
    modules=frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}),
    images=frozenset({"vllm/vllm-openai", "vllm/vllm-openai-rocm"}),
    ranks_of_node=ranks_of_node,
    at_odds=at_odds,
    node_rules=node_rules,
    unknown_options=unknown_options,
)  # fmt: skip
# KServe's server hands what it does not know to vLLM's parser; its model stands under a name of its own, and what it
# refuses is not known.
HUGGING_FACE_SERVER = EngineCommand(
    program="huggingfaceserver",
    engine=VLLM.engine,
    flags=(
        Flag(names=("model-id",), field="model", form="text"),
        Flag(names=("max-model-len", "max-length"), field="max_model_len", form="whole-or-auto"),
        Flag(names=("backend",), field="backend", form="text"),
        *(flag for flag in FLAGS if flag.field not in ("model", "max_model_len", "options_file")),
    ),
    layout=_layout,
    uncounted=VLLM.uncounted,
    overriding=VLLM.overriding,
    multi_node=VLLM.multi_node,
    memory_saving=VLLM.memory_saving,
    cache_dtypes=VLLM.cache_dtypes,
    modules=frozenset({"huggingfaceserver"}),
    images=VLLM.images,
    backends=frozenset({"auto", "vllm"}),
    takes_positional=False,
)
