"""Deployments: every field by itself for several engines, every engine's versions, every family, and mixed draws."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.same_answers.candidates.parts import Candidate, Change, changed, each, families, models
from benchmarks.same_answers.candidates.training import BY_HAND, ODD_CONFIG

VERSIONS = {
    "vllm": (
        "0.8",
        "0.9",
        "0.10",
        "0.11.2",
        "0.12",
        "0.14",
        "0.16",
        "0.19.0",
        "0.22",
        "0.25",
        "0.29",
        "0.33",
        "0.7",
        "x",
    ),
    "sglang": ("0.5", "0.5.6", "0.4"),
    "tensorrt-llm": ("1.0", "1.1", "1.2", "1.3", "0.20"),
    "transformers": ("4.57", "5.0", "5.8", "5.23", "4.40"),
}
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "google/gemma-3-12b-it",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "openai/gpt-oss-20b",
    "microsoft/phi-4",
    "deepseek-ai/DeepSeek-V2-Lite",
)
LARGE = (
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-235B-A22B",
    "moonshotai/Kimi-K2-Instruct",
    "meta-llama/Llama-3.1-405B",
)
GPUS = (
    "h100-sxm-80gb",
    "h100-sxm-80gb",
    "a100-sxm-80gb",
    "h200-sxm-141gb",
    "l40s-48gb",
    "l4-24gb",
    "b200-sxm-180gb",
    "mi300x-192gb",
    "rtx-4090-24gb",
    "t4-16gb",
    "a10g-24gb",
)
HISTOGRAM = {"lengths": [128, 512, 2048, 8192], "counts": [10, 40, 35, 15]}
OPEN_LENGTHS = {"serving.input_tokens": None, "serving.output_tokens": None}
LONG = "Qwen/Qwen2.5-7B-Instruct"

FIELDS: tuple[Change, ...] = (
    *each(
        "serving.weights",
        "fp32",
        "bf16",
        "fp16",
        "fp8",
        "int8",
        "nf4",
        "int4",
        "int4-experts",
        "mxfp4",
        "mxfp4-fp8",
        "nvfp4",
    ),
    *each("serving.weights", ["bf16", "fp8"], ["fp8", "int4", "nf4"]),
    *each("serving.kv_cache", "fp32", "bf16", "fp16", "fp8", "int8", "nvfp4", ["bf16", "fp8"]),
    *each("serving.max_model_len", 512, 8192, 131_072, 10_000_000),
    *each(
        "serving.rope_scaling",
        {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32_768},
        {"rope_type": "linear", "factor": 2},
        {"rope_type": "dynamic", "factor": 2.5, "rope_theta": 1e6},
    ),
    {"serving.rope_scaling": {"rope_type": "yarn", "factor": 4}, "model": LONG, "serving.max_model_len": 100_000},
    *(
        {"serving.input_tokens": put, "serving.output_tokens": out}
        for put, out in ((128, 1), (1, 128), (30_000, 2_000))
    ),
    *each("serving.concurrency", 1, 37, 1000),
    *each("serving.gpu_memory_utilization", 0.5, 0.95, 1.0),
    *each("serving.block_size", 1, 16, 32, 48, 128),
    *each("serving.cache_implementation", "dynamic", "static"),
    *each("serving.max_num_batched_tokens", 512, 2048, 16_384, [2048, 8192]),
    *each("serving.max_num_seqs", 1, 64, 1000, [32, 256]),
    *each("serving.slo", {"ttft_seconds": 0.5, "tpot_seconds": 0.03}, {"tpot_seconds": 0.001}, {"ttft_seconds": 10}),
    *each("serving.requests_per_second", 0.1, 5, 500),
    {"serving.requests_per_second": 5, "serving.slo": {"ttft_seconds": 1, "tpot_seconds": 0.05}},
    {"serving.requests_per_second": 5, "serving.concurrency": 5},
    {
        **OPEN_LENGTHS,
        "serving.input_length": {"mean": 800, "p90": 2000, "p99": 6000},
        "serving.output_length": {"p50": 200, "p99": 900},
    },
    {**OPEN_LENGTHS, "serving.input_length": {"histogram": HISTOGRAM}, "serving.output_length": {"mean": 300}},
    {**OPEN_LENGTHS, "serving.input_length": {"p50": 500, "p90": 100}},
    *each("serving.prefix_cache_hit_rate", 0.0, 0.6, 1.0),
    *each("serving.speculative", {"tokens": 3, "acceptance_rate": 0.7}, {"tokens": 1, "acceptance_rate": 0}),
    *each("serving.disaggregated", True, {"prefill_gpus": 2, "decode_gpus": 2}, {"prefill_gpus": 3}, False),
    *({"hardware.gpus": 8, "serving.disaggregated": True, "objective": goal} for goal in ("latency", "cost")),
    *each("layout.tensor_parallel", 1, 2, 3, 4, 8),
    *each("layout.pipeline_parallel", 2, 4),
    *each("layout.data_parallel", 1, 2, 4),
    *(
        {"hardware.gpus": 8, "layout.attention_data_parallel": n, "model": "deepseek-ai/DeepSeek-V2-Lite"}
        for n in (1, 2, 4)
    ),
    *({"hardware.gpus": 8, "layout.expert_parallel": n, "model": "Qwen/Qwen3-30B-A3B"} for n in (1, 2, 4, 8)),
    *(
        {
            "layout.decode_context_parallel": n,
            "layout.tensor_parallel": 8,
            "hardware": {"gpu": "h200-sxm-141gb", "gpus": 8},
            "model": "deepseek-ai/DeepSeek-V2-Lite",
        }
        for n in (2, 4, 8)
    ),
    *({"model": model, "hardware": {"gpu": "b200-sxm-180gb", "gpus": {"min": 4, "max": 16}}} for model in LARGE),
    *({"hardware.gpus": 4, "serving.disaggregated": {"prefill_gpus": n, "decode_gpus": 4 - n}} for n in (1, 2)),
    *({"model": model, "hardware": {"gpu": "h200-sxm-141gb", "gpus": 16}, "serving.weights": "fp8"} for model in LARGE),
    *(
        {
            "model": model,
            "hardware": {"gpu": "h200-sxm-141gb", "gpus": 16},
            "layout": {"attention_data_parallel": 8, "expert_parallel": 8, "tensor_parallel": 1},
        }
        for model in LARGE
    ),
    *each("objective", "throughput"),
    *(
        {"objective": goal, "hardware": {"gpu": "h100-sxm-80gb", "usd_per_gpu_hour": 3}}
        for goal in ("fewest_gpus", "cost", "latency")
    ),
    *(
        {
            "objective": goal,
            "hardware.gpus": {"min": 1, "max": 16},
            "serving.concurrency": 500,
            "hardware.usd_per_gpu_hour": 2,
        }
        for goal in ("fewest_gpus", "cost", "latency", "throughput")
    ),
    {
        "hardware": {
            "fleet": [{"gpu": "l4-24gb", "gpus": 4}, {"gpu": "h100-sxm-80gb", "gpus": 1}, {"gpu": "t4-16gb", "gpus": 8}]
        }
    },
    {
        "hardware": {
            "fleet": [{"gpu": "a100-sxm-80gb", "usd_per_gpu_hour": 2}, {"gpu": "h200-sxm-141gb", "usd_per_gpu_hour": 4}]
        },
        "objective": "cost",
        "serving.concurrency": 300,
    },
    {"hardware": {"gpu": BY_HAND, "gpus": 2}},
    *each("hardware.override", {"memory_bytes_per_second": 1e12, "name": "slow"}, {"memory_bytes": 30_000_000_000}),
    *each("hardware.used_bytes", 10_000_000_000, 70_000_000_000),
    *each("hardware.reserve_bytes", 4_000_000_000),
    *each("hardware.gpus", 1, 3, 8, 61, 1000, {"min": 2, "max": 6}),
    {"hardware": {"gpu": "h100-sxm-80gb", "cluster": "dgx-h100", "gpus": 8}},
    *({"model": {"config": ODD_CONFIG}, "hardware.gpus": gpus} for gpus in (1, 8)),
    *each("model", {"parameters": 7e9}, {"parameters": 1e12}),
)


def candidates(random: Random) -> Iterator[Candidate]:
    """Yield deployments."""
    for field in FIELDS:
        for engine in random.sample(sorted(VERSIONS), len(VERSIONS)):
            kind = " and ".join(f"{name}={value}"[:60] for name, value in field.items())[:100]
            yield _candidate(f"serve with {kind}", changed(base(random), {"serving.engine": engine}, field))
    for engine, versions in VERSIONS.items():
        for version in versions:
            for _ in range(3):
                chosen = {"serving.engine": engine, "serving.engine_version": version}
                yield _candidate(f"serve by {engine} {version}", changed(base(random), chosen))
        for _ in range(30):
            yield _candidate(
                f"serve a layout of {engine}", changed(base(random), {"serving.engine": engine}, degrees(random))
            )
    for model in families():
        for engine in random.sample(sorted(VERSIONS), len(VERSIONS)):
            config = {"model": {"config": model["config"]}, "serving.engine": engine}
            for gpus in (16, 8, 1, None):
                short = {"hardware": {"gpu": "h200-sxm-141gb", "gpus": gpus}, "serving.max_model_len": 1024}
                kind = f"serve a config of {model['config']['model_type']}"
                yield _candidate(kind, changed(base(random), config, short, {"serving.input_tokens": 256}))
    for _ in range(200):
        model = {"model": random.choice(models())["id"], "serving.engine": random.choice(sorted(VERSIONS))}
        request = changed(base(random), model, *random.sample(FIELDS, random.choice((2, 3))))
        yield _candidate("serve, mixed", request)


def base(random: Random) -> dict[str, Any]:
    """Return a deployment that most engines can run."""
    return {
        "model": random.choice(MODELS),
        "hardware": {"gpu": random.choice(GPUS), "gpus": random.choice((1, 1, 2, 4, 8))},
        "serving": {
            "max_model_len": random.choice((2048, 4096, 8192)),
            "input_tokens": random.choice((256, 1000)),
            "output_tokens": random.choice((64, 500)),
        },
    }


def degrees(random: Random) -> Change:
    """Return a layout with every degree fixed."""
    tensor, pipeline, data = random.choice((1, 2, 4, 8)), random.choice((1, 1, 2)), random.choice((1, 2, 3))
    return {
        "hardware.gpus": tensor * pipeline * data,
        "layout": {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": data},
        "serving.concurrency": random.choice((1, 64, 300)),
    }


def _candidate(kind: str, request: dict[str, Any]) -> Candidate:
    return {"kind": kind, "method": "POST", "path": "/plan/infer", "body": request}
