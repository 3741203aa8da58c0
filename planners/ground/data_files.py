"""Data files in TOML: read once, laid over what they inherit, and checked key by key as they become records."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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
    """Return a value of `kind` from a table.

    What a field is says what becomes of its value: a table a record of its own, a list a tuple, a name one of an
    enumeration. Raises `ValueError` with the path of a key that is missing, unknown or of another kind than its field.
    """
    entries = fields(kind)  # type: ignore[arg-type]
    known = {entry.name for entry in entries}
    needed = {entry.name for entry in entries if entry.default is entry.default_factory is MISSING}
    wrong = (needed - set(table)) | (set(table) - known)
    if wrong:
        raise ValueError(f"{kind.__name__}: keys {sorted(wrong)} are missing or unknown.")
    types = _types(kind)  # type: ignore[arg-type]
    return kind(**{key: _at(f"{kind.__name__}.{key}", types[key], value) for key, value in table.items()})


@functools.cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _at(path: str, kind: Any, value: Any) -> Any:
    try:
        return _as(kind, value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _as(kind: Any, value: Any) -> Any:
    """Return a value of a file as a field of `kind` has it."""
    if isinstance(kind, UnionType):
        if value is None:
            return None
        kind = next(each for each in get_args(kind) if each is not NoneType)
    container = get_origin(kind)
    if container is Literal:
        return _one_of(get_args(kind), value)
    if isinstance(value, list) and container is tuple:
        return tuple(_as(get_args(kind)[0], each) for each in value)
    if isinstance(value, dict) and is_dataclass(kind) and isinstance(kind, type):
        return record(kind, value)
    if isinstance(value, dict) and container is not None:
        return {key: _as(get_args(kind)[1], each) for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(_one_of(tuple(kind), value))
    return _plain(kind, value)


def _one_of(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}.")
    return value


def _plain(kind: Any, value: Any) -> Any:
    """Return a value without parts; a whole number is a float too, and True is no number."""
    kind = get_origin(kind) or kind
    if not isinstance(kind, type):
        return value
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{value!r} is no {kind.__name__}.")
    return value
