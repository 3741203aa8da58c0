"""`trtllm-serve`'s options by our names for what they say: read from commands, and written in launch files.

Sources: tensorrt_llm/commands/serve.py and tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FLAGS = (
    Flag(names=("tensor-parallel-size", "tp-size"), field="tensor_parallel", form="whole", written="tp_size"),
    Flag(names=("pipeline-parallel-size", "pp-size"), field="pipeline_parallel", form="whole", written="pp_size"),
    Flag(names=("moe-expert-parallel-size", "ep-size"), field="expert_ranks", form="whole", written="ep_size"),
    Flag(names=("enable-attention-dp",), field="is_attention_data_parallel", form="switch"),
    Flag(names=("max-seq-len",), field="max_model_len", form="whole", written="max_seq_len"),
    Flag(names=("max-num-tokens",), field="max_num_batched_tokens", form="whole", written="max_num_tokens"),
    Flag(names=("enable-chunked-prefill",), field="chunked_prefill", form="switch", written="enable_chunked_prefill"),
    Flag(names=("max-batch-size",), field="max_num_seqs", form="whole", written="max_batch_size"),
    Flag(
        names=(
            "free-gpu-memory-fraction",
            "kv-cache-free-gpu-memory-fraction",
            "kv-cache-config.free-gpu-memory-fraction",
        ),
        field="gpu_memory_utilization",
        form="number",
        written="free_gpu_memory_fraction",
    ),
    Flag(names=("kv-cache-config.tokens-per-block",), field="block_size", form="whole"),
    Flag(names=("kv-cache-dtype", "kv-cache-config.dtype"), field="kv_cache", form="text"),
    Flag(names=("dtype",), field="dtype", form="text"),
    Flag(names=("backend",), field="backend", form="text"),
    Flag(names=("config", "extra-llm-api-options"), field="options_file", form="text", written="extra_llm_api_options"),
)
