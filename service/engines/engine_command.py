"""How each serving engine is told what `/plan/infer` asks: its options, by our names for them.

Sources: vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py; sglang/srt/server_args.py;
tensorrt_llm/commands/serve.py and tensorrt_llm/llmapi/llm_args.py; kserve, python/huggingfaceserver/__main__.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plimsoll.service.workloads.commands.flags import Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """How one engine is told what `/plan/infer` asks.

    Flags in `unread` take memory that no planner counts; with one of `decisive` the
    command's other flags no longer say what is loaded where, and one of `lowering`
    may leave more than is planned. One of `spanning` says that ranks run in other pods
    too. `program` is what people call it, `engine` whose memory it takes. A file of options is named by the field
    `options_file`; `file_wins` where it replaces what the command line says.
    """

    program: str
    engine: str
    flags: tuple[Flag, ...]
    unread: frozenset[str]
    decisive: frozenset[str]
    spanning: frozenset[str]
    lowering: frozenset[str]
    cache_dtypes: Mapping[str, str | None]
    file_wins: bool = False
    takes_positional: bool = True


VLLM = EngineCommand(
    program="vllm",
    engine="vllm",
    flags=(
        Flag(names=("model",), field="model", form="text"),
        Flag(names=("tensor-parallel-size", "tp"), field="tensor_parallel", form="whole"),
        Flag(names=("pipeline-parallel-size", "pp"), field="pipeline_parallel", form="whole"),
        Flag(names=("data-parallel-size", "dp"), field="data_parallel", form="whole"),
        Flag(names=("enable-expert-parallel", "ep"), field="expert_parallel", form="switch"),
        Flag(names=("decode-context-parallel-size", "dcp"), field="decode_context_parallel", form="whole"),
        Flag(names=("max-model-len",), field="max_model_len", form="whole-or-auto"),
        Flag(names=("gpu-memory-utilization",), field="gpu_memory_utilization", form="number"),
        Flag(names=("max-num-seqs",), field="max_num_seqs", form="whole"),
        Flag(names=("max-num-batched-tokens",), field="max_num_batched_tokens", form="whole"),
        Flag(names=("enable-chunked-prefill",), field="chunked_prefill", form="switch"),
        Flag(names=("no-enable-chunked-prefill",), field="chunked_prefill", form="switched-off"),
        Flag(names=("block-size",), field="block_size", form="whole"),
        Flag(names=("kv-cache-dtype",), field="kv_cache", form="text"),
        Flag(names=("quantization", "q"), field="quantization", form="text"),
        Flag(names=("dtype",), field="dtype", form="text"),
        Flag(names=("distributed-executor-backend",), field="executor", form="text"),
        Flag(names=("data-parallel-backend",), field="replica_executor", form="text"),
        Flag(names=("cpu-offload-gb",), field="offloaded_gib", form="number"),
        Flag(names=("max-lora-rank",), field="lora_rank", form="whole"),
        Flag(names=("config",), field="options_file", form="text"),
        Flag(names=("nnodes", "n"), field="nodes", form="whole-if-written"),
        Flag(names=("node-rank", "r"), field="node_rank", form="whole-if-written"),
        Flag(names=("data-parallel-size-local", "dpl"), field="local_data_parallel", form="whole-if-written"),
        Flag(names=("data-parallel-rank", "dpn"), field="data_rank", form="whole-if-written"),
        Flag(names=("data-parallel-address", "dpa"), field="data_address", form="text-if-written"),
        Flag(names=("master-addr",), field="address", form="text-if-written"),
        Flag(names=("headless",), field="headless", form="switch"),
    ),
    unread=frozenset({
        "--speculative-config", "--enable-lora", "--enforce-eager", "--kv-transfer-config",
        "--num-gpu-blocks-override", "--compilation-config", "--kv-cache-memory-bytes",
    }),
    decisive=frozenset({
        "--cpu-offload-params", "--offload-backend", "--offload-group-size", "--offload-params",
        "--hf-overrides", "--prefill-context-parallel-size",
    }),
    spanning=frozenset({
        "--nnodes", "-n", "--node-rank", "-r", "--headless", "--data-parallel-size-local", "-dpl",
        "--data-parallel-address", "-dpa", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr",
        "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe",
    }),
    lowering=frozenset({
        "--enforce-eager", "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--compilation-config", "-cc",
        "--optimization-level", "-O", "--cuda-graph-sizes", "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size", "--language-model-only", "--limit-mm-per-prompt", "--skip-mm-profiling",
    }),
    cache_dtypes={
        "auto": None, "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    },
)  # fmt: skip
# KServe's server hands what it does not know to vLLM's parser; its model stands under a name of its own.
HUGGING_FACE_SERVER = replace(
    VLLM,
    program="huggingfaceserver",
    flags=(
        Flag(names=("model-id",), field="model", form="text"),
        Flag(names=("max-model-len", "max-length"), field="max_model_len", form="whole-or-auto"),
        Flag(names=("backend",), field="backend", form="text"),
        *(flag for flag in VLLM.flags if flag.field not in ("model", "max_model_len", "options_file")),
    ),
    takes_positional=False,
)
SGLANG = EngineCommand(
    program="sglang",
    engine="sglang",
    flags=(
        Flag(names=("model-path", "model"), field="model", form="text"),
        Flag(names=("tensor-parallel-size", "tp-size", "tp"), field="tensor_parallel", form="whole"),
        Flag(names=("pipeline-parallel-size", "pp-size", "pp"), field="pipeline_parallel", form="whole"),
        Flag(names=("data-parallel-size", "dp-size", "dp"), field="data_parallel", form="whole"),
        Flag(names=("attention-data-parallel-size", "attn-dp-size"), field="attention_data_parallel", form="whole"),
        Flag(names=("enable-dp-attention",), field="is_attention_data_parallel", form="switch"),
        Flag(names=("expert-parallel-size", "ep-size", "ep"), field="expert_ranks", form="whole"),
        Flag(names=("context-length",), field="max_model_len", form="whole"),
        Flag(names=("mem-fraction-static",), field="gpu_memory_utilization", form="number"),
        Flag(names=("max-running-requests",), field="max_num_seqs", form="whole"),
        # -1 leaves prompts whole.
        Flag(names=("chunked-prefill-size",), field="max_num_batched_tokens", form="whole-or-auto"),
        Flag(names=("page-size",), field="block_size", form="whole"),
        Flag(names=("kv-cache-dtype",), field="kv_cache", form="text"),
        Flag(names=("quantization",), field="quantization", form="text"),
        Flag(names=("dtype",), field="dtype", form="text"),
        Flag(names=("cpu-offload-gb",), field="offloaded_gib", form="number"),
        Flag(names=("config",), field="options_file", form="text"),
        Flag(names=("nnodes",), field="nodes", form="whole-if-written"),
        Flag(names=("node-rank",), field="node_rank", form="whole-if-written"),
        Flag(names=("dist-init-addr", "nccl-init-addr"), field="address", form="text-if-written"),
    ),
    unread=frozenset({
        "--speculative-algorithm", "--speculative-draft-model-path", "--disaggregation-mode", "--max-total-tokens",
        "--lora-paths",
    }),
    decisive=frozenset({
        "--offload-group-size", "--offload-mode", "--json-model-override-args", "--torchao-config",
        "--kt-weight-path", "--kt-method", "--kt-num-gpu-experts",
    }),
    spanning=frozenset({"--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"}),
    lowering=frozenset({
        "--disable-cuda-graph", "--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-piecewise-cuda-graph",
        "--max-total-tokens",
    }),
    cache_dtypes={"auto": None, "bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"},
)  # fmt: skip
TENSORRT_LLM = EngineCommand(
    program="trtllm-serve",
    engine="tensorrt-llm",
    flags=(
        Flag(names=("tensor-parallel-size", "tp-size"), field="tensor_parallel", form="whole"),
        Flag(names=("pipeline-parallel-size", "pp-size"), field="pipeline_parallel", form="whole"),
        Flag(names=("moe-expert-parallel-size", "ep-size"), field="expert_ranks", form="whole"),
        Flag(names=("enable-attention-dp",), field="is_attention_data_parallel", form="switch"),
        Flag(names=("max-seq-len",), field="max_model_len", form="whole"),
        Flag(names=("max-num-tokens",), field="max_num_batched_tokens", form="whole"),
        Flag(names=("max-batch-size",), field="max_num_seqs", form="whole"),
        Flag(
            names=(
                "free-gpu-memory-fraction",
                "kv-cache-free-gpu-memory-fraction",
                "kv-cache-config.free-gpu-memory-fraction",
            ),
            field="gpu_memory_utilization",
            form="number",
        ),
        Flag(names=("kv-cache-config.tokens-per-block",), field="block_size", form="whole"),
        Flag(names=("kv-cache-dtype", "kv-cache-config.dtype"), field="kv_cache", form="text"),
        Flag(names=("dtype",), field="dtype", form="text"),
        Flag(names=("backend",), field="backend", form="text"),
        Flag(names=("config", "extra-llm-api-options"), field="options_file", form="text"),
    ),
    unread=frozenset({
        "--speculative-config", "--lora-config", "--kv-cache-config.max-tokens",
        "--kv-cache-config.max-gpu-total-bytes",
    }),
    decisive=frozenset({
        "--context-parallel-size", "--cp-size", "--moe-cluster-parallel-size", "--cluster-size", "--quant-config",
        "--cp-config",
    }),
    spanning=frozenset(),
    lowering=frozenset({
        "--cuda-graph-config", "--kv-cache-config.max-tokens", "--kv-cache-config.max-gpu-total-bytes",
    }),
    cache_dtypes={"auto": None, "fp8": "fp8", "nvfp4": "nvfp4"},
    file_wins=True,
)  # fmt: skip
