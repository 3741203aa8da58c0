"""The data file of each engine, found by listing the folders, with the defaults that they inherit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plimsoll.planners.ground.data_files import overlaid, read_toml

ENGINES_FOLDER = Path(__file__).parents[1] / "engines"
TABLE, EFFICIENCY, DEFAULTS = "engine.toml", "efficiency.toml", "defaults.toml"


@cache
def engine_folders() -> Mapping[str, Path]:
    """Return the folder of every engine by the engine's name, in the order in which engines are listed."""
    folders = {path.parent: read_toml(path) for path in ENGINES_FOLDER.glob(f"*/{TABLE}")}
    return MappingProxyType(
        {folders[folder]["engine"]: folder for folder in sorted(folders, key=lambda each: folders[each]["listed"])}
    )


def known_engines() -> tuple[str, ...]:
    """Return the names of all engines, the one that is taken where none is named first."""
    return tuple(engine_folders())


@cache
def read_table(engine: str) -> Mapping[str, Any]:
    """Return what an engine's file says, the defaults for what it omits."""
    own, defaults = read_toml(engine_folders()[engine] / TABLE), read_toml(ENGINES_FOLDER / DEFAULTS)
    first, *later = own["revision"]
    inherited = {name: value for name, value in defaults.items() if name not in own and name != "revision"}
    return MappingProxyType({**inherited, **own, "revision": [overlaid(defaults["revision"], first), *later]})


def read_efficiency(engine: str) -> Mapping[str, Any] | None:
    """Return an engine's fitted weights, None where its speed is not described."""
    path = engine_folders()[engine] / EFFICIENCY
    return read_toml(path) if path.is_file() else None
