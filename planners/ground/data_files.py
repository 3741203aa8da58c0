"""Data files in TOML: read once, laid over what they inherit, and checked key by key as they become records."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


@functools.cache
def read_toml(file: Path) -> Mapping[str, Any]:
    """Return what a file says, which is read once."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any], whole: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a table with another's keys in the place of its own, tables of both merged key by key but those `whole`.

    A value within such a table is replaced, be it a list or a table again.
    """
    merged = dict(below)
    for key, value in above.items():
        is_merged = isinstance(value, dict) and key in below and key not in whole
        merged[key] = {**below[key], **value} if is_merged else value
    return merged


def record(kind: type[T], table: Mapping[str, Any]) -> T:
    """Return a value of `kind` from a table; a missing or unknown key raises where the file is wrong.

    What a field is says what becomes of its value: a table a record of its own, a list a tuple, a name one of an
    enumeration.
    """
    entries = fields(kind)  # type: ignore[arg-type]
    known = {entry.name for entry in entries}
    needed = {entry.name for entry in entries if entry.default is entry.default_factory is MISSING}
    wrong = (needed - set(table)) | (set(table) - known)
    if wrong:
        raise ValueError(f"{kind.__name__}: keys {sorted(wrong)} are missing or unknown.")
    types = _types(kind)  # type: ignore[arg-type]
    return kind(**{key: _as(types[key], value) for key, value in table.items()})


@functools.cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _as(kind: Any, value: Any) -> Any:
    if isinstance(kind, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if isinstance(value, list):
        return tuple(_as(get_args(kind)[0], each) for each in value)
    if isinstance(value, dict):
        if is_dataclass(kind) and isinstance(kind, type):
            return record(kind, value)
        return {key: _as(get_args(kind)[1], each) for key, each in value.items()}
    return kind(value) if isinstance(kind, type) and issubclass(kind, StrEnum) else value
