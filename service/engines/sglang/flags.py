"""SGLang's options by our names for what they say: read from commands, and written in launch files.

Source: sglang/srt/server_args.py.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FLAGS = (
    Flag(names=("model-path", "model"), field="model", form="text"),
    Flag(names=("tensor-parallel-size", "tp-size", "tp"), field="tensor_parallel", form="whole", written="tp-size"),
    Flag(names=("pipeline-parallel-size", "pp-size", "pp"), field="pipeline_parallel", form="whole", written="pp-size"),
    Flag(names=("data-parallel-size", "dp-size", "dp"), field="data_parallel", form="whole", written="dp-size"),
    Flag(names=("attention-data-parallel-size", "attn-dp-size"), field="attention_data_parallel", form="whole"),
    Flag(names=("enable-dp-attention",), field="is_attention_data_parallel", form="switch"),
    Flag(names=("expert-parallel-size", "ep-size", "ep"), field="expert_ranks", form="whole", written="ep-size"),
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
)
