"""Parts of a Kubernetes object by their path, and what is wrong with one that is not of the form its kind has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from plimsoll.planners.ground.errors import PlimsollError

Path: TypeAlias = tuple[str, ...]


class UnreadableObject(PlimsollError):
    """A part of the object is not what its kind says it is."""

    code = "unreadable-object"


class ObjectNotRead(Exception):
    """Another object, which a workload names, is not at hand; the text says why."""


def annotations_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations; what is no text is left away."""
    metadata = manifest.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def below(value: Any, steps: Path) -> Any:
    """Return what lies there, None where nothing does: a patch says only what it changes."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def each_of(value: Any) -> list[Any]:
    """Return the entries of a list, none of what is no list."""
    return value if isinstance(value, list) else []


def pointer(path: Path) -> str:
    """Return the JSON pointer (RFC 6901) of a path into the object."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def part_at(value: Mapping[str, Any], steps: Path, above: Path = ()) -> Mapping[str, Any]:
    """Return the object below these steps; raises UnreadableObject where one of them leads to none."""
    for done, step in enumerate(steps, start=1):
        value = as_mapping(value.get(step), (*above, *steps[:done]))
    return value


def as_mapping(value: Any, path: Path) -> Mapping[str, Any]:
    """Return an object; raises UnreadableObject for anything else."""
    if not isinstance(value, dict):
        raise UnreadableObject(f"{pointer(path) or 'The object'} must be an object.", pointer=pointer(path))
    return value


def as_list(value: Any, path: Path) -> list[Any]:
    """Return a list, an empty one where nothing stands; raises UnreadableObject for anything else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableObject(f"{pointer(path)} must be a list.", pointer=pointer(path))
    return value


def as_texts(value: Any, path: Path) -> tuple[str, ...]:
    """Return a list of texts; raises UnreadableObject for anything else."""
    items = as_list(value, path)
    if not all(isinstance(item, str) for item in items):
        raise UnreadableObject(f"{pointer(path)} must be a list of texts.", pointer=pointer(path))
    return tuple(items)


def pod_count(value: Mapping[str, Any], name: str, path: Path) -> int:
    """Return a number of pods, 1 where none is written; raises UnreadableObject for what is no number of them."""
    count = value.get(name)
    if count is None:
        return 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        where = pointer((*path, name))
        raise UnreadableObject(f"{where} must be a whole number of at least 0.", pointer=where)
    return count
