"""Which of torchtitan's models a config describes: it knows models by a name and a flavor, one for each size.

Source: torchtitan 0.2.2, `models/llama3/__init__.py`, `models/qwen3/__init__.py`
and `models/deepseek_v3/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A flavor by the names that torchtitan's options `model.name` and `model.flavor` take.

    `has_pipeline` says whether torchtitan can cut that model into pipeline stages.
    """

    model: str
    name: str
    has_pipeline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What tells one flavor of a family from the others, as its config has it."""

    hidden_size: int
    layers: int
    heads: int
    key_value_heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One of torchtitan's models: its name, vocabulary and flavors; `has_pipeline` as in `Flavor`."""

    model: str
    has_pipeline: bool
    vocabulary_size: int
    flavors: Mapping[Sizes, str]


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

# By transformers' model_type. A config of these sizes with another vocabulary is of another model.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(model="llama3", has_pipeline=True, vocabulary_size=128_256, flavors=LLAMA_3),
    "qwen3": Family(model="qwen3", has_pipeline=False, vocabulary_size=151_936, flavors=QWEN_3),
    "qwen3_moe": Family(model="qwen3", has_pipeline=False, vocabulary_size=151_936, flavors=QWEN_3_MOE),
    "deepseek_v3": Family(model="deepseek_v3", has_pipeline=True, vocabulary_size=129_280, flavors=DEEPSEEK_V3),
}


# A model of each flavor, by the names that the options take. Further flavors of 8B have other kernels of attention.
HUB_NAMES: Mapping[tuple[str, str], str] = {
    **{("llama3", name): f"meta-llama/Llama-3.1-{name}" for name in LLAMA_3.values()},
    **{("llama3", f"8B_{kernels}"): "meta-llama/Llama-3.1-8B" for kernels in ("flex", "varlen")},
    **{("qwen3", name): f"Qwen/Qwen3-{name}" for name in (*QWEN_3.values(), *QWEN_3_MOE.values())},
    ("deepseek_v3", "671B"): "deepseek-ai/DeepSeek-V3",
}


def torchtitan_flavor(config: Mapping[str, Any]) -> Flavor | None:
    """Return a config's flavor, or None where torchtitan has no model of its type, sizes and vocabulary."""
    family = FAMILIES.get(config.get("model_type", ""))
    if family is None:
        return None
    heads = config["num_attention_heads"]
    sizes = Sizes(
        hidden_size=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
    )
    name = family.flavors.get(sizes)
    if name is None or config["vocab_size"] != family.vocabulary_size:
        return None
    return Flavor(model=family.model, name=name, has_pipeline=family.has_pipeline)
