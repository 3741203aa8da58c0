"""TOML of tables of plain values; the standard library reads it and does not write it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of strings, numbers, booleans and lists of them as a TOML document.

    A table's name may have dots. The last line has no line end.
    """
    return "\n\n".join("\n".join(_table_lines(name, table)) for name, table in tables.items() if table)


def _table_lines(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in table.items():
        # JSON's strings, numbers, booleans and lists are TOML's too.
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
