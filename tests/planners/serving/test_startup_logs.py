"""The planner against what vLLM printed at start on H100-80GB (79.19 GiB).

Source: llm-d-incubation/llm-d-planner pull request 205 at 56dc5b7,
accuracy/results/v0.19.0/logs and accuracy/results/version-sweep/runs. Every run
batched 8,192 tokens of up to 1,024 sequences at utilization 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.planning import plan_serving
from tests.planners.serving.factories import LLAMA_8B, LLAMA_70B, QWEN2_72B, QWEN3_8B, QWEN3_14B, model, question


@dataclass(frozen=True, kw_only=True)
class Log:
    """One start: GiB of weights, profiled peak and cache as printed, tokens and requests of the context."""

    name: str
    config: dict[str, Any]
    weights_gib: float
    activations_gib: float
    cache_gib: float
    tokens: int
    concurrency: float
    version: str = "0.19.0"
    tensor: int = 1
    pipeline: int = 1
    weights: str = "bf16"
    kv: str = "bf16"
    context: int = 8192


def llama_8b(name: str, cache_gib: float, tokens: int, concurrency: float, **changes: Any) -> Log:
    figures = {"weights_gib": 14.99, "activations_gib": 1.89, **changes}
    return Log(name=name, config=LLAMA_8B, cache_gib=cache_gib, tokens=tokens, concurrency=concurrency, **figures)


def qwen3_14b(version: str, activations_gib: float, cache_gib: float, tokens: int, concurrency: float) -> Log:
    return Log(
        name=f"Qwen3-14B at {version}",
        config=QWEN3_14B,
        weights_gib=27.52,
        activations_gib=activations_gib,
        cache_gib=cache_gib,
        tokens=tokens,
        concurrency=concurrency,
        version=version,
    )


LOGS = (
    llama_8b("Llama-3.1-8B", 58.11, 476000, 58.11),
    llama_8b("Llama-3.1-8B in fp16", 58.11, 476016, 58.11, weights="fp16", kv="fp16"),
    llama_8b(
        "Llama-3.1-8B in fp32", 42.80, 175296, 21.40, weights="fp32", kv="fp32", weights_gib=29.98, activations_gib=2.21
    ),
    llama_8b("Llama-3.1-8B, cache in fp8", 58.11, 952032, 116.21, kv="fp8"),
    llama_8b("Llama-3.1-8B in fp8", 64.61, 529248, 64.61, weights="fp8", weights_gib=8.49),
    llama_8b("Llama-3.1-8B w8a8", 64.60, 529200, 64.60, weights="int8", weights_gib=8.49),
    llama_8b("Llama-3.1-8B w4a16", 67.71, 554704, 67.71, weights="int4", weights_gib=5.38),
    llama_8b("Llama-3.1-8B, 2,048 tokens", 58.11, 476016, 232.43, context=2048),
    llama_8b("Llama-3.1-8B, 4,096 tokens", 58.11, 476016, 116.21, context=4096),
    llama_8b("Llama-3.1-8B, 32,768 tokens", 58.11, 476016, 14.53, context=32768),
    llama_8b("Llama-3.1-8B on 2 ranks", 63.76, 1044688, 127.53, tensor=2, weights_gib=7.51),
    llama_8b("Llama-3.1-8B on 4 ranks", 67.44, 2209792, 269.75, tensor=4, weights_gib=3.77),
    llama_8b(
        "Llama-3.1-8B on 2 stages", 66.54, 1075312, 131.26, pipeline=2, weights_gib=7.51, activations_gib=1.10
    ),
    llama_8b(
        "Llama-3.1-8B on 4 stages", 69.80, 2257264, 275.54, pipeline=4, weights_gib=4.26, activations_gib=1.05
    ),
    Log(
        name="Llama-3.3-70B in fp8 on 4 ranks", config=LLAMA_70B, weights_gib=16.96, activations_gib=1.97,
        cache_gib=54.09, tokens=708992, concurrency=86.55, tensor=4, weights="fp8",
    ),
    Log(
        name="Llama-3.3-70B w8a8 on 2 ranks", config=LLAMA_70B, weights_gib=33.88, activations_gib=1.96,
        cache_gib=37.28, tokens=244304, concurrency=29.82, tensor=2, weights="int8",
    ),
    Log(
        name="Kimi-Dev-72B (Qwen2) on 2 ranks", config=QWEN2_72B, weights_gib=67.82, activations_gib=2.29,
        cache_gib=3.02, tokens=19776, concurrency=2.41, tensor=2,
    ),
    Log(
        name="Qwen3-8B", config=QWEN3_8B, weights_gib=15.27, activations_gib=2.21, cache_gib=57.50, tokens=418688,
        concurrency=51.11,
    ),
    qwen3_14b("0.15.0", 5.64, 41.94, 274848, 33.55),
    qwen3_14b("0.16.0", 5.64, 41.94, 274848, 33.55),
    qwen3_14b("0.17.0", 2.23, 45.34, 297152, 36.27),
    qwen3_14b("0.18.0", 2.23, 45.23, 296400, 36.18),
)  # fmt: skip


def plan_of(log: Log):
    asked = question(
        model(log.config),
        gpus=log.tensor * log.pipeline,
        layout={"tensor_parallel": log.tensor, "pipeline_parallel": log.pipeline},
        engine_version=log.version,
        weights=log.weights,
        kv_cache=log.kv,
        max_model_len=log.context,
        gpu_memory_utilization=0.95,
        input_tokens=1024,
        output_tokens=512,
    )
    return plan_serving(asked).plan


every_log = pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)


@every_log
def test_weights_are_exact_to_the_printed_digit_or_three_per_mille(log):
    # Kimi-Dev is 0.07 GiB off (its own files were not read); w4a16's zero points are an assumption.
    planned = plan_of(log).memory.stages[0].items.weights / GIB
    assert planned == pytest.approx(log.weights_gib, abs=0.006, rel=0.003)


@every_log
def test_the_profiled_peak_is_within_a_twentieth_of_a_gib(log):
    planned = plan_of(log).memory.stages[0].items.activations / GIB
    assert planned == pytest.approx(log.activations_gib, abs=0.05)


@every_log
def test_the_printed_cache_lies_within_the_band(log):
    # The engine prints its first stage's cache; the band of a pipeline is its last stage's.
    plan = plan_of(log)
    offset = plan.memory.stages[0].available_bytes - plan.kv.available_bytes
    low, high = (plan.kv.available_low_bytes + offset) / GIB, (plan.kv.available_high_bytes + offset) / GIB
    assert low <= log.cache_gib <= high


@every_log
def test_tokens_and_concurrency_are_within_three_per_mille(log):
    # Kimi-Dev's cache is 3 GiB, of which 0.07 are 2.4 %.
    tolerance = 0.03 if "Kimi" in log.name else 0.003
    kv = plan_of(log).kv
    assert kv.tokens == pytest.approx(log.tokens, rel=tolerance)
    assert kv.max_concurrency == pytest.approx(log.concurrency, rel=tolerance)


def test_the_blocks_of_a_plain_model_come_out_as_logged():
    # Logged twice: 29,750 and 29,751 blocks.
    assert plan_of(LOGS[0]).kv.blocks in (29750, 29751)
