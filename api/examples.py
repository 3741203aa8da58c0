"""Requests as the documentation shows them; the tests send every one."""

from __future__ import annotations

from typing import Any, TypeAlias

from plimsoll.service.requests import examples as main_job

Examples: TypeAlias = dict[str, Any]

TINY_CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}

PLAN_TRAIN: Examples = {
    "llama-3.1-8b on eight H100s": {"value": main_job.PLAN_TRAINING},
    "a config of your own, tensor parallelism fixed": {
        "value": {
            "model": {"config": TINY_CONFIG},
            "hardware": {"gpu": "a100-sxm-80gb", "gpus": 4, "usd_per_gpu_hour": 1.8},
            "training": {"sequence_length": 2048, "global_batch_size": 256, "tokens": 3e11},
            "layout": {"tensor_parallel": 1},
        }
    },
}

PLAN_INFER: Examples = {
    "qwen2.5-72b on four H100s": {"value": main_job.SIZE_SERVING},
    "llama-3.1-8b on one card": {
        "value": {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": "l40s-48gb", "gpus": 1},
            "serving": {"max_model_len": 8192, "input_tokens": 1024, "output_tokens": 256, "concurrency": 8},
        }
    },
}

QUANTIZE: Examples = {"llama-3.2-1b to NF4, random weights": {"value": main_job.QUANTIZE}}

VALIDATE: Examples = {
    "count": {"value": {"level": "count"}},
    "trace": {"value": {"level": "trace"}},
    "on the plan's kind of GPU": {"value": {"level": "device", "device": "gpu"}},
    "on a worker's CPU": {"value": {"level": "device", "device": "cpu"}},
}

DESCRIBE: Examples = {
    "by name": {"value": {"model": "llama-3.1-8b"}},
    "by config": {"value": {"model": {"config": TINY_CONFIG}}},
    "by size": {"value": {"model": {"parameters": 6.2e9}}},
}

CALIBRATION: Examples = {
    "benchmarks of one node, and one run": {
        "value": {
            "microbenchmarks": [
                {"kind": "matmul", "rows": 8192, "inputs": 8192, "outputs": 8192, "flops_per_second": 6.1e14},
                {"kind": "memory", "bytes_per_second": 2.6e12},
                {"kind": "all_reduce", "message_bytes": 1_073_741_824, "ranks": 8, "seconds": 0.006},
            ],
            "measurements": [
                {
                    "run": {
                        "model": "llama-3.1-8b",
                        "framework": "fsdp2",
                        "training": {
                            "sequence_length": 8192,
                            "global_batch_size": 64,
                            "micro_batch_size": 1,
                            "recompute": "full",
                        },
                        "layout": {"data_parallel": 8, "tensor_parallel": 1, "zero_stage": 3},
                        "gpus": 8,
                    },
                    "step_seconds": 12.2,
                }
            ],
        }
    },
    "a deployment under two loads": {
        "value": {
            "serving": [
                {
                    "deployment": {
                        "model": "llama-3.1-8b",
                        "serving": {"input_tokens": 2048, "output_tokens": 512, "concurrency": clients},
                        "layout": {"tensor_parallel": 1, "data_parallel": 1},
                        "gpus": 1,
                    },
                    "tpot_seconds": token_seconds,
                    "ttft_seconds": first_seconds,
                }
                for clients, token_seconds, first_seconds in ((8, 0.0095, 0.21), (64, 0.0210, 0.33))
            ],
        }
    },
}

MEASUREMENT: Examples = {
    "a run without a plan": {
        "value": {
            "framework": "fsdp2",
            "gpu": "h100-sxm-80gb",
            "model": "meta-llama/Llama-3.1-8B",
            "peak_bytes": 61_203_283_968,
            "step_seconds": 9.4,
            "source": "cluster-1",
        }
    },
    "a server's start-up log": {
        "value": {
            "gpu": "h100-sxm-80gb",
            "source": "cluster-1",
            "log": (
                "INFO [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: "
                "model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, "
                "tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto\n"
                "INFO [gpu_model_runner.py:4700] Model loading took 14.99 GiB memory and 3.2 seconds\n"
                "INFO [gpu_worker.py:391] Available KV cache memory: 54.15 GiB\n"
                "INFO [kv_cache_utils.py:1307] GPU KV cache size: 443,568 tokens\n"
            ),
        }
    },
}
