"""YAML in block style, of plain values, quickly: PyYAML takes milliseconds for what a plan is answered in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A word that no YAML 1.1 reader takes for anything but itself: no number, no date, no indicator.
PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*(:[A-Za-z0-9_/.-]+)*")
# YAML 1.1, https://yaml.org/type/bool.html and null.html, in any capitals; .inf and .nan of float.html.
RESERVED = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null", ".inf", ".nan"})


def yaml_text(value: Mapping[str, Any]) -> str:
    """Return a mapping of strings, numbers, booleans, None, mappings and sequences as a YAML document.

    The last line has no line end.
    """
    return "\n".join(_mapping_lines(value, ""))


def _mapping_lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield f"{indent}{_scalar(key)}:"
            yield from _mapping_lines(item, indent + "  ")
        elif _is_sequence(item) and item:
            yield f"{indent}{_scalar(key)}:"
            yield from _sequence_lines(item, indent)
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(item)}"


def _sequence_lines(value: Sequence[Any], indent: str) -> Iterator[str]:
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *others = _mapping_lines(item, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from others
        else:
            yield f"{indent}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = PLAIN.fullmatch(value) and value.lower() not in RESERVED
        return value if is_plain else json.dumps(value)
    if isinstance(value, float):
        # YAML 1.1 takes 1e-08 for a word; a float there has a point.
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    # JSON's words for the rest are YAML's too: null, true, 3, {} and lists within one line.
    return json.dumps(value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
