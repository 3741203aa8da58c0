"""YAML in block style, of plain values, quickly: libyaml's dumper takes seven times as long, 0.3 ms more a manifest."""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

# A word that no YAML 1.1 reader takes for anything but itself: no number, no date, no indicator. Options of a program
# begin with two hyphens, a shell's and Kubernetes' variables with $.
PLAIN = re.compile(r"(--)?[A-Za-z_/$][\w./$()=@+-]*(:[\w./$()=@+-]+)*", re.ASCII)
# YAML 1.1, https://yaml.org/type/bool.html and null.html, in any capitals.
RESERVED = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null"})
# The c-printable of https://yaml.org/spec/1.1/#id868524 without the line breaks among them.
PRINTABLE = r"[ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
UNPRINTABLE = re.compile(f"(?!{PRINTABLE}).", re.DOTALL)
# A text of whole lines. The first must not be indented, for its indentation would be taken for the block's.
LINES = re.compile(rf"(?! )({PRINTABLE}+\n)+")


# Most of what manifests say is the same in each.
MOST_REMEMBERED_TEXTS = 4_096
MOST_REMEMBERED_CHARACTERS = 400


def yaml_text(*documents: Mapping[str, Any]) -> str:
    """Return mappings of strings, numbers, booleans, None, dicts and lists or tuples as YAML, one document each.

    The last line has no line end, unless it is one of a text of lines and the end the text's own.
    """
    lines: list[str] = []
    for document in documents:
        if lines:
            lines.append("---")
        _add_mapping(lines, document, "", "")
    text = "\n".join(lines)
    return text + "\n" if lines and "\n" in lines[-1] else text


def _add_mapping(lines: list[str], value: Mapping[str, Any], start: str, indent: str) -> None:
    """Add the lines of a mapping: the first begins with `start`, the others with `indent`."""
    for key, item in value.items():
        name = start + _text(key)
        start = indent
        if isinstance(item, str):
            # Most are one word: only what ends a line can be a text of lines.
            if item[-1:] == "\n" and LINES.fullmatch(item):
                lines.append(f"{name}: |\n" + textwrap.indent(item[:-1], indent + "  "))
            else:
                lines.append(f"{name}: {_scalar(item)}")
        elif isinstance(item, dict) and item:
            lines.append(name + ":")
            _add_mapping(lines, item, indent + "  ", indent + "  ")
        elif isinstance(item, list | tuple) and item:
            lines.append(name + ":")
            _add_sequence(lines, item, indent)
        else:
            lines.append(f"{name}: {_scalar(item)}")


def _add_sequence(lines: list[str], value: Sequence[Any], indent: str) -> None:
    for item in value:
        if isinstance(item, dict) and item:
            _add_mapping(lines, item, indent + "- ", indent + "  ")
        else:
            lines.append(f"{indent}- {_scalar(item)}")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value) if len(value) <= MOST_REMEMBERED_CHARACTERS else _written(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, float):
        # YAML 1.1 takes 1e-08 for a word; a float there has a point.
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    # JSON's words for the rest are YAML's too: null, true, {} and lists within one line.
    return json.dumps(value)


@functools.lru_cache(MOST_REMEMBERED_TEXTS)
def _text(value: str) -> str:
    return _written(value)


def _written(value: str) -> str:
    is_plain = PLAIN.fullmatch(value) and value.lower() not in RESERVED
    return value if is_plain else UNPRINTABLE.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
