"""The data file of each engine, found by listing the folders, with the defaults that they inherit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

ENGINES_FOLDER = Path(__file__).parents[1] / "engines"
TABLE, DEFAULTS = "engine.toml", "defaults.toml"


@cache
def engine_folders() -> Mapping[str, Path]:
    """Return the folder of every engine by the engine's name, in the order in which engines are listed."""
    folders = {path.parent: _read(path) for path in ENGINES_FOLDER.glob(f"*/{TABLE}")}
    return MappingProxyType(
        {folders[folder]["engine"]: folder for folder in sorted(folders, key=lambda each: folders[each]["listed"])}
    )


def known_engines() -> tuple[str, ...]:
    """Return the names of all engines, the one that is taken where none is named first."""
    return tuple(engine_folders())


@cache
def read_table(engine: str) -> Mapping[str, Any]:
    """Return what an engine's file says, the defaults for what it omits."""
    own, defaults = _read(engine_folders()[engine] / TABLE), _read(ENGINES_FOLDER / DEFAULTS)
    first, *later = own["revision"]
    inherited = {name: value for name, value in defaults.items() if name not in own and name != "revision"}
    return MappingProxyType({**inherited, **own, "revision": [changed(defaults["revision"], first), *later]})


def read_beside(engine: str, name: str) -> Mapping[str, Any] | None:
    """Return another data file of an engine's folder, None where it has none."""
    path = engine_folders()[engine] / name
    return _read(path) if path.is_file() else None


def changed(before: Any, after: Any) -> Any:
    """Return a value as a later revision leaves it: of a table only what it names changes."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    return {**before, **{name: changed(before.get(name), value) for name, value in after.items()}}


@cache
def _read(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)
