"""Commands that start `trtllm-serve`.

Sources: tensorrt_llm/commands/serve.py and tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

from plimsoll.service.engines.command import EngineCommand, named_degrees, with_attention_ranks
from plimsoll.service.engines.tensorrt_llm.flags import FLAGS
from plimsoll.service.workloads.commands.flags import Arguments


def _layout(read: Arguments) -> dict[str, int]:
    """Return the degrees of a command; attention is data-parallel over all tensor ranks or over none."""
    layout = named_degrees(read)
    if read.values.get("is_attention_data_parallel"):
        layout = with_attention_ranks(layout, layout["tensor_parallel"])
    if "expert_ranks" in read.values:
        layout["expert_parallel"] = int(read.values["expert_ranks"])
    return layout


TENSORRT_LLM = EngineCommand(
    program="trtllm-serve",
    engine="tensorrt-llm",
    flags=FLAGS,
    uncounted=frozenset({
        "--speculative-config", "--lora-config", "--kv-cache-config.max-tokens",
        "--kv-cache-config.max-gpu-total-bytes",
    }),
    overriding=frozenset({
        "--context-parallel-size", "--cp-size", "--moe-cluster-parallel-size", "--cluster-size", "--quant-config",
        "--cp-config",
    }),
    multi_node=frozenset(),
    memory_saving=frozenset({
        "--cuda-graph-config", "--kv-cache-config.max-tokens", "--kv-cache-config.max-gpu-total-bytes",
    }),
    cache_dtypes={"auto": None, "fp8": "fp8", "nvfp4": "nvfp4"},
    file_wins=True,
    layout=_layout,
    # `serve` is what it does unless it is told another command.
    starts=(("trtllm-serve", "serve"), ("trtllm-serve",)),
    not_serving=frozenset({"mm_embedding_serve", "disaggregated", "disaggregated_mpi_worker", "grpc"}),
    images=frozenset({"nvidia/tensorrt-llm/release"}),
    # Its own since 1.0.
    backends=frozenset({"pytorch"}),
)  # fmt: skip
