"""torchtitan's models by their sizes: what it calls a model that a config describes.

Source: torchtitan 0.2.2, `models/llama3/__init__.py`, `models/qwen3/__init__.py`
and `models/deepseek_v3/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A model's name and flavor in torchtitan, and whether that model can be cut into pipeline stages."""

    model: str
    name: str
    has_pipeline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What tells one flavor of a family from the others."""

    hidden_size: int
    layers: int
    heads: int
    key_value_heads: int


LLAMA_3_VOCABULARY = 128_256
QWEN_3_VOCABULARY = 151_936
DEEPSEEK_V3_VOCABULARY = 129_280

LLAMA_3 = {
    Sizes(hidden_size=4096, layers=32, heads=32, key_value_heads=8): "8B",
    Sizes(hidden_size=8192, layers=80, heads=64, key_value_heads=8): "70B",
    Sizes(hidden_size=16384, layers=126, heads=128, key_value_heads=8): "405B",
}
QWEN_3 = {
    Sizes(hidden_size=1024, layers=28, heads=16, key_value_heads=8): "0.6B",
    Sizes(hidden_size=2048, layers=28, heads=16, key_value_heads=8): "1.7B",
    Sizes(hidden_size=2560, layers=36, heads=32, key_value_heads=8): "4B",
    Sizes(hidden_size=4096, layers=36, heads=32, key_value_heads=8): "8B",
    Sizes(hidden_size=5120, layers=40, heads=40, key_value_heads=8): "14B",
    Sizes(hidden_size=5120, layers=64, heads=64, key_value_heads=8): "32B",
}
QWEN_3_MOE = {
    Sizes(hidden_size=2048, layers=48, heads=32, key_value_heads=4): "30B-A3B",
    Sizes(hidden_size=4096, layers=94, heads=64, key_value_heads=4): "235B-A22B",
}
DEEPSEEK_V3 = {Sizes(hidden_size=7168, layers=61, heads=128, key_value_heads=128): "671B"}

# By transformers' model_type: torchtitan's model, whether it makes pipeline stages of it, its vocabulary and flavors.
FAMILIES = {
    "llama": ("llama3", True, LLAMA_3_VOCABULARY, LLAMA_3),
    "qwen3": ("qwen3", False, QWEN_3_VOCABULARY, QWEN_3),
    "qwen3_moe": ("qwen3", False, QWEN_3_VOCABULARY, QWEN_3_MOE),
    "deepseek_v3": ("deepseek_v3", True, DEEPSEEK_V3_VOCABULARY, DEEPSEEK_V3),
}


def torchtitan_flavor(config: Mapping[str, Any]) -> Flavor | None:
    """Return what torchtitan calls the model of a config, or None where it has no model of these sizes."""
    family = FAMILIES.get(config.get("model_type", ""))
    if family is None:
        return None
    model, has_pipeline, vocabulary, flavors = family
    heads = config["num_attention_heads"]
    sizes = Sizes(
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
    )
    name = flavors.get(sizes)
    if name is None or config["vocab_size"] != vocabulary:
        return None
    return Flavor(model=model, name=name, has_pipeline=has_pipeline)
