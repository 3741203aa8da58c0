"""What vLLM prints as it starts."""

from __future__ import annotations

from plimsoll.planners.serving.log_lines import (
    COUNT,
    GIB_NUMBER,
    NAME,
    NUMBER,
    WORD,
    LogLines,
    count_line,
    gib_line,
    word,
)

# vllm/v1/worker/gpu_worker.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_utils.py, utils/mem_utils.py; before
# 0.8 vllm/worker/worker.py and executor/executor_base.py.
LINES = (
    gib_line("weights_bytes", "oading", r"(?:model loading|loading model weights) took " + GIB_NUMBER),
    gib_line("weights_bytes", "model weights take", r"model weights take " + GIB_NUMBER),
    gib_line("weights_bytes", "weights memory:", r"weights memory: " + GIB_NUMBER),
    gib_line("activations_bytes", "torch peak memory increase", r"torch peak memory increase: " + GIB_NUMBER),
    gib_line("activations_bytes", "activation peak memory", r"activation peak memory takes " + GIB_NUMBER),
    gib_line("runtime_bytes", "non-torch forward", r"non-torch forward increase memory: " + GIB_NUMBER),
    gib_line("runtime_bytes", "non_torch_memory", r"non_torch_memory takes " + GIB_NUMBER),
    gib_line("cuda_graphs_bytes", "Graph captur", r"graph capturing finished in .{1,40}? took " + GIB_NUMBER),
    gib_line("kv_available_bytes", "Available KV cache memory", r"available kv cache memory: " + GIB_NUMBER, min),
    gib_line("kv_available_bytes", "reserved for KV Cache", r"reserved for kv cache is " + GIB_NUMBER, min),
    count_line("kv_tokens", "KV cache size", r"kv cache size: " + COUNT + r" tokens", min),
    count_line("kv_blocks", " blocks:", r"# (?:gpu|cuda) blocks: " + COUNT, min),
    count_line("kv_max_concurrency", "Maximum concurrency", r"tokens per request: " + NUMBER + "x", min),
    count_line("max_model_len", "Maximum concurrency", r"concurrency for " + COUNT + " tokens"),
    count_line("max_num_batched_tokens", "max_num_batched_tokens=", r"max_num_batched_tokens=" + COUNT),
    count_line("max_num_batched_tokens", "max_num_batched_tokens'", r"'max_num_batched_tokens': " + COUNT),
    count_line("max_num_seqs", "max_num_seqs'", r"'max_num_seqs': " + COUNT),
    count_line("gpu_memory_utilization", "gpu_memory_utilization", r"gpu_memory_utilization'?(?: \(|: |=)" + NUMBER),
    count_line("gpu_memory_utilization", "Requested memory", r"requested memory: " + NUMBER + r" \(util\)"),
    count_line("max_model_len", "max_seq_len=", r"max_seq_len=" + COUNT),
    count_line("tensor_parallel", "tensor_parallel_size=", r"tensor_parallel_size=" + COUNT),
    count_line("pipeline_parallel", "pipeline_parallel_size=", r"pipeline_parallel_size=" + COUNT),
    count_line("data_parallel", "data_parallel_size=", r"[ ,]data_parallel_size=" + COUNT),
    count_line("decode_context_parallel", "decode_context_parallel_size=", r"decode_context_parallel_size=" + COUNT),
)

STARTUP_LOG = LogLines(
    lines=LINES,
    settings="LLM engine (v",
    words={
        "model": word(r"\bmodel=" + NAME),
        "weight_dtype": word(r"[ ,]dtype=(?:torch\.)?(\w{1,20})"),
        "quantization": word(r"[ ,]quantization=" + WORD),
        "kv_cache_dtype": word(r"\bkv_cache_dtype=" + WORD),
    },
    versions=(
        word(r"LLM engine \(v(\d[\w.+-]{0,60})\)"),
        word(r"vLLM API server version (\d[\w.+-]{0,60})"),
    ),
)
