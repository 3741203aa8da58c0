"""Small models, GPUs and questions with defaults, for tests of the planners."""

from __future__ import annotations

from typing import Any

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware
from plimsoll.planners.questions import LayoutRequest, TrainingQuestion

LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
LLAMA_3_70B = {
    **LLAMA_3_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LLAMA_7B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def llama(config: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """Return a Llama-family model; Llama 3 8B unless told otherwise."""
    return describe_config({**(config or LLAMA_3_8B), **changes}, name="llama")


def small_llama(**changes: Any) -> ModelSpec:
    """Return a Llama small enough to count by hand: 4 layers, hidden 64, 4 heads, 2 key-value heads."""
    base = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return describe_config({**base, **changes}, name="small-llama")


def small_mixtral(**changes: Any) -> ModelSpec:
    """Return a Mixtral of 64 features whose tokens go to two of four experts."""
    config = {
        "model_type": "mixtral",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    return describe_config({**config, **changes}, name="small")


def gpt(**changes: Any) -> ModelSpec:
    """Return a GPT-2 like model of 32 layers, hidden 4,096, 32 heads and a plain MLP of 4h."""
    base = {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": 4096,
        "n_head": 32,
        "n_layer": 32,
        "n_positions": 2048,
    }
    return describe_config({**base, **changes}, name="gpt")


def gpu(**changes: Any) -> Gpu:
    """Return an H100-like card: 79.19 GiB, 3.35 TB/s, 989 TFLOP/s in bf16, 450 GB/s NVLink."""
    facts: dict[str, Any] = {
        "id": "test-80gb",
        "name": "Test 80GB",
        "memory_bytes": 85_029_158_912,
        "memory_bytes_per_second": 3.35e12,
        "peak_flops_per_second": {
            "fp32": 67e12,
            "tf32": 494.7e12,
            "bf16": 989.4e12,
            "fp16": 989.4e12,
            "fp8": 1978.9e12,
        },
        "link_bytes_per_second": 450e9,
        "link_kind": "nvlink",
        "pcie_bytes_per_second": 64e9,
        "nic_bytes_per_second": 50e9,
        "gpus_per_node": 8,
        "source": "NVIDIA H100 datasheet",
    }
    return Gpu(**{**facts, **changes})


def hardware(gpus: int | tuple[int, int] | None = 8, **changes: Any) -> Hardware:
    """Return machines of eight cards; `gpus` a number, a range, or None for the fewest."""
    if gpus is None:
        count = GpuCount(minimum=1, maximum=4096, is_free=True)
    elif isinstance(gpus, tuple):
        count = GpuCount(minimum=gpus[0], maximum=gpus[1])
    else:
        count = GpuCount(minimum=gpus, maximum=gpus)
    return Hardware(**{"gpu": gpu(), "gpus": count, "gpus_per_node": 8, **changes})


def question(
    *,
    model: ModelSpec | None = None,
    gpus: int | tuple[int, int] | None = 8,
    layout: dict[str, Any] | None = None,
    **changes: Any,
) -> TrainingQuestion:
    """Return a question: Llama 3 8B, 8,192 tokens, 64 sequences, on eight cards."""
    facts: dict[str, Any] = {
        "model": model or llama(),
        "hardware": hardware(gpus),
        "sequence_length": 8192,
        "global_batch_size": 64,
        "layout": LayoutRequest(**(layout or {})),
    }
    return TrainingQuestion(**{**facts, **changes})
