"""The main job as requests: what the documentation shows, the start-up suggests and the demo runs."""

from __future__ import annotations

from typing import Any, Final

PLAN_TRAINING: Final[dict[str, Any]] = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8, "gpus_per_node": 8},
    "training": {
        "method": "full",
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "sequence_length": 8192,
        "global_batch_size": 64,
        "tokens": 1.5e12,
    },
    "framework": "fsdp2",
}

SIZE_SERVING: Final[dict[str, Any]] = {
    "model": "Qwen/Qwen2.5-72B-Instruct",
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 4},
    "serving": {
        "weights": "bf16",
        "kv_cache": "bf16",
        "max_model_len": 32768,
        "input_tokens": 2048,
        "output_tokens": 512,
        "concurrency": 64,
        "slo": {"ttft_seconds": 1.0, "tpot_seconds": 0.05},
    },
    "layout": {"tensor_parallel": 4},
}

QUANTIZE: Final[dict[str, Any]] = {
    "model": "meta-llama/Llama-3.2-1B",
    "scheme": "nf4",
    "double_quantization": True,
    "block_size": 64,
    "weights": "random",
    "seed": 0,
}
