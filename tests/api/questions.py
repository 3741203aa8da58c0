"""Requests that the service answers, with parts of them replaced."""

from __future__ import annotations

from typing import Any

TINY_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def train(**parts: Any) -> dict[str, Any]:
    """Return a training request; `training` is merged, every other part replaces its own."""
    training = {"sequence_length": 512, "global_batch_size": 8, **parts.pop("training", {})}
    return {
        "model": {"config": TINY_CONFIG},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "training": training,
        **parts,
    }


def infer(**parts: Any) -> dict[str, Any]:
    """Return a serving request; `serving` is merged, every other part replaces its own."""
    serving = {"max_model_len": 1024, "input_tokens": 256, "output_tokens": 64, **parts.pop("serving", {})}
    return {
        "model": {"config": TINY_CONFIG},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "serving": serving,
        **parts,
    }
