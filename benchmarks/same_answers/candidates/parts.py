"""What candidates are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

# A question as it is stored, but for its number.
Candidate: TypeAlias = dict[str, Any]
# Fields by their path with dots: {"training.optimizer": "sgd"}.
Change: TypeAlias = Mapping[str, Any]

CATALOGUE = "**/catalogue/models/*.json"


def changed(request: Mapping[str, Any], *changes: Change) -> dict[str, Any]:
    """Return a request with the fields of the changes; a later one of a field replaces an earlier one."""
    made: dict[str, Any] = json.loads(json.dumps(request))
    for change in changes:
        for path, value in change.items():
            *parts, last = path.split(".")
            part = made
            for name in parts:
                part = part.setdefault(name, {})
            part[last] = value
    return made


def each(field: str, *values: Any) -> Iterator[Change]:
    """Yield a change of one field for each value."""
    for value in values:
        yield {field: value}


@cache
def models() -> tuple[Mapping[str, Any], ...]:
    """Return the catalogue's models as their files say them, by id."""
    files = (file for file in Path().glob(CATALOGUE) if not file.parts[0].startswith("."))
    return tuple(sorted((json.loads(file.read_text(encoding="utf-8")) for file in files), key=lambda each: each["id"]))


def families() -> Iterator[Mapping[str, Any]]:
    """Yield one model of every type, that with the shortest config."""
    types = sorted({str(model["config"]["model_type"]) for model in models()})
    for name in types:
        yield min((each for each in models() if each["config"]["model_type"] == name), key=_config_length)


def _config_length(model: Mapping[str, Any]) -> int:
    return len(json.dumps(model["config"]))
