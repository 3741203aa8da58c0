"""How many of a key's features turn with its position, and how often positions are interpolated.

Sources: `transformers` 5.23, the families' configuration classes; Gemma 3's technical
report, arXiv:2503.19786, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

FRACTION_NAMES = ("partial_rotary_factor", "rotary_pct")
# What the classes take where a config leaves it away.
CLASS_FRACTIONS: Mapping[str, float] = MappingProxyType(
    {
        "qwen3_next": 0.25,
        "qwen3_5": 0.25,
        "qwen3_5_moe": 0.25,
        "qwen3_5_text": 0.25,
        "qwen3_5_moe_text": 0.25,
        "phi": 0.5,
        "gpt_neox": 0.25,
        "stablelm": 0.25,
        "nemotron": 0.5,
    }
)
# Gemma 3's full layers interpolate positions of the models with 128k tokens, beside the plain ones of its windows.
INTERPOLATED_MODELS, INTERPOLATED_FROM, INTERPOLATED_BY = ("gemma3", "gemma3_text"), 131_072, 8


def rotary_fraction(config: Mapping[str, Any], model_type: str) -> float:
    """Return the part of a key's features that turn: what the config says, else its class."""
    for part in _parts(config):
        for name in FRACTION_NAMES:
            found = part.get(name)
            if isinstance(found, int | float) and 0 < found <= 1:
                return float(found)
    return CLASS_FRACTIONS.get(model_type, 1.0)


def interpolated_tables(model_type: str, positions: int | None) -> int:
    """Return how many tables of all positions an engine keeps beside the plain one.

    Layers with windows turn by another base than the full ones, whose table is a
    second one; interpolated it has as many times the rows.

    Source: vllm/model_executor/layers/rotary_embedding/__init__.py, get_rope (a table for each base), and
    linear_scaling_rope.py.
    """
    if model_type not in INTERPOLATED_MODELS:
        return 0
    return INTERPOLATED_BY if (positions or 0) >= INTERPOLATED_FROM else 1


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            yield part
            scaled = part.get("rope_parameters")
            if isinstance(scaled, Mapping):
                yield scaled
