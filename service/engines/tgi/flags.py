"""Options of Text Generation Inference's launcher, read from commands and written in launch files.

Source: launcher/src/main.rs of huggingface/text-generation-inference.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FLAGS = (
    Flag(names=("model-id",), field="model", form="text"),
    Flag(names=("num-shard",), field="tensor_parallel", form="whole"),
    Flag(names=("sharded",), field="sharded", form="text"),
    Flag(names=("quantize",), field="quantize", form="text"),
    Flag(names=("dtype",), field="dtype", form="text"),
    Flag(names=("kv-cache-dtype",), field="kv_cache", form="text"),
    Flag(names=("max-input-tokens",), field="max_input_tokens", form="whole"),
    # Its name before 2.0.
    Flag(names=("max-input-length",), field="max_input_length", form="whole"),
    Flag(names=("max-total-tokens",), field="max_model_len", form="whole"),
    Flag(names=("max-batch-prefill-tokens",), field="max_num_batched_tokens", form="whole"),
    Flag(names=("max-batch-total-tokens",), field="max_batch_total_tokens", form="whole"),
    Flag(names=("cuda-memory-fraction",), field="gpu_memory_utilization", form="number"),
    Flag(names=("lora-adapters",), field="lora_adapters", form="text"),
    Flag(names=("speculate",), field="speculate", form="whole"),
)
