"""A `config.json` as it was written: bounded, cut to what can size a model, and told in numbers that JSON knows."""

from __future__ import annotations

import math
import re
from typing import Any

# A config.json is a page of text; real ones nest four deep. Only lists of what a quantizer treated go beyond that: one
# entry for each matrix of each expert.
MOST_CONFIG_KEYS = 2_000
MOST_CONFIG_DEPTH = 16
MOST_ENTRIES = 500_000
QUANTIZED = "quantization_config"
NUMBERS = re.compile(r"\d+")
# How transformers 5 writes what JSON has no number for (configuration_utils.py, `_encode_special_floats`); before, it
# wrote Python's own words.
SPECIAL_NUMBER = "__float__"


def bounded_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config; raises ValueError where it is no config anyone could have written."""
    _check_entries(config, MOST_ENTRIES)
    short = _with_short_lists(config)
    _check_entries(short, MOST_CONFIG_KEYS)
    finite: dict[str, Any] = _in_json(short)
    return finite


def special_number(name: str) -> dict[str, str]:
    """Return `Infinity`, `-Infinity` or `NaN` as transformers 5 writes it."""
    return {SPECIAL_NUMBER: name}


def _with_short_lists(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with one module for all that only their numbers tell apart, where a quantizer named each."""
    if sum(_entries(value) for value in config.values()) <= MOST_CONFIG_KEYS:
        return config
    return {
        key: _shortened(value) if key == QUANTIZED else _with_short_lists(value) if isinstance(value, dict) else value
        for key, value in config.items()
    }


def _entries(value: Any) -> int:
    """Return how many entries a value has, those of its members among them."""
    if not isinstance(value, dict | list):
        return 0
    members = value.values() if isinstance(value, dict) else value
    return len(value) + sum(_entries(member) for member in members)


def _shortened(value: Any) -> Any:
    """Return a value whose lists and objects name the first module of each kind alone, not every layer's."""
    if isinstance(value, list):
        first: dict[str | int, Any] = {}
        for place, member in enumerate(value):
            first.setdefault(_kind(member) if isinstance(member, str) else place, _shortened(member))
        return list(first.values())
    if isinstance(value, dict):
        kinds: dict[str, str] = {}
        for key in value:
            kinds.setdefault(_kind(key), key)
        return {key: _shortened(value[key]) for key in kinds.values()}
    return value


def _kind(name: str) -> str:
    return NUMBERS.sub("*", name) if "." in name else name


def _in_json(value: Any) -> Any:
    """Return a value without the numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return special_number("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _in_json(member) for key, member in value.items()}
    return [_in_json(member) for member in value] if isinstance(value, list) else value


def _check_entries(config: dict[str, Any], most: int) -> None:
    """Raise ValueError where a config has more entries than `most`, or is nested too deep."""
    keys = 0
    level: list[Any] = [config]
    for _ in range(MOST_CONFIG_DEPTH):
        inner: list[Any] = []
        for value in level:
            keys += len(value)
            inner.extend(item for item in (value.values() if isinstance(value, dict) else value) if _holds_more(item))
        if keys > most:
            raise ValueError(f"has more than {most:,} entries")
        if not inner:
            return
        level = inner
    raise ValueError(f"is nested more than {MOST_CONFIG_DEPTH} deep")


def _holds_more(value: Any) -> bool:
    return isinstance(value, dict | list)
