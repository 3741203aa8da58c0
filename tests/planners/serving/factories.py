"""Small GPUs, models and questions with defaults, for tests of the serving planner."""

from __future__ import annotations

import dataclasses
from typing import Any

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion

# vLLM logs 79.19 GiB; rates of the H100 whitepaper, dense.
H100 = Gpu(
    id="h100-sxm-80gb",
    name="NVIDIA H100 SXM5 80 GB",
    memory_bytes=round(79.19 * GIB),
    memory_bytes_per_second=3.35e12,
    peak_flops_per_second={"tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12},
    link_bytes_per_second=450e9,
    link_kind="nvlink4",
    pcie_bytes_per_second=63e9,
    nic_bytes_per_second=50e9,
    gpus_per_node=8,
    source="NVIDIA H100 whitepaper",
)

LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
LLAMA_7B = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960,
}  # fmt: skip
QWEN3_14B = {
    **QWEN3_8B, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
}  # fmt: skip
QWEN2_72B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN2_0_5B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}  # fmt: skip
MIXTRAL = {
    **LLAMA_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
}  # fmt: skip


def model(config: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """Return a described model, Llama-3.1-8B unless told otherwise."""
    return describe_config({**(config or LLAMA_8B), **changes}, name="model")


def hybrid(*, full: int, sliding: int, window: int, **changes: Any) -> ModelSpec:
    """Return a Llama-like model of full-attention and then sliding-window layers."""
    kinds = ["full_attention"] * full + ["sliding_attention"] * sliding
    return model(
        {**LLAMA_8B, "model_type": "qwen2", "use_sliding_window": True},
        num_hidden_layers=full + sliding,
        layer_types=kinds,
        sliding_window=window,
        **changes,
    )


def hardware(gpus: int | tuple[int, int] | None = 1, **changes: Any) -> Hardware:
    """Return H100s: a number, a range, or as few as will do."""
    if gpus is None:
        count = GpuCount(minimum=1, maximum=64, is_free=True)
    elif isinstance(gpus, tuple):
        count = GpuCount(minimum=gpus[0], maximum=gpus[1])
    else:
        count = GpuCount(minimum=gpus, maximum=gpus)
    return dataclasses.replace(Hardware(gpu=H100, gpus=count, gpus_per_node=8), **changes)


def question(
    spec: ModelSpec | None = None,
    *,
    gpus: int | tuple[int, int] | None = 1,
    layout: dict[str, int] | None = None,
    **changes: Any,
) -> ServingQuestion:
    """Return a question about vLLM 0.19, whose logs most figures come from."""
    return ServingQuestion(
        **{
            "model": spec or model(),
            "hardware": hardware(gpus),
            "engine": "vllm",
            "engine_version": "0.19",
            "max_model_len": 8192,
            "layout": ServingLayoutRequest(**(layout or {})),
            **changes,
        }
    )
