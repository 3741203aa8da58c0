"""vLLM's options by our names for what they say: read from commands, and written in launch files.

Sources: vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FLAGS = (
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
)
