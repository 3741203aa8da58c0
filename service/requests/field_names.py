"""Which fields a place of a request has, and which of them an unknown name was meant for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from plimsoll.service.requests.foreign_names import EXPLAINED, format_meant, said_here, without_size
from plimsoll.service.requests.values import MOST_NAME_CHARACTERS

MOST_MEANT = 2
# Of difflib: `sequence_lenght` is 0.93 like `sequence_length`, and nothing that is another word reaches 0.75.
MISSPELT, LIKE = 0.75, 0.5
LEAST_CONTAINED_CHARACTERS = 3
# Of `num_gpus` and `gpu_type`, what says nothing of which field is meant.
BARE_WORDS = frozenset({"n", "num", "number", "of", "count", "total", "name", "type", "kind", "id"})


def unknown_field(location: Sequence[int | str], given: object, request: type[BaseModel] | None) -> str:
    """Return what to say after the name of a field that its place does not have: which was meant, or which there are.

    `location` is Pydantic's, whose last step is the unknown name; `given` is the object that it was found in.
    """
    if request is None:
        return "is not a field here."
    name = str(location[-1]).lower()[:MOST_NAME_CHARACTERS]
    if name in EXPLAINED:
        return f"is not a field here; {EXPLAINED[name]}."
    here = fields_at(location[:-1], request)
    foreign = said_here(name, _paths(request))
    elsewhere = sorted((path for path in _paths(request) if _is_part(name, path)), key=lambda path: _rank(name, path))
    free = [known for known in here if not (isinstance(given, Mapping) and known in given)]
    meant = (
        foreign
        or _alike(name, free)
        or _alike(name, here)
        or _bare(name, free)
        or elsewhere[:1]
        or _alike(without_size(name), here)
        or [path for path in _paths(request) if without_size(name) != name and _is_part(without_size(name), path)][:1]
        or get_close_matches(name, free, MOST_MEANT, LIKE)
    )
    if meant:
        value = format_meant(given.get(location[-1]), meant) if isinstance(given, Mapping) else ""
        return f"is not a field here; did you mean {' or '.join(meant)}{value}?"
    return f"is not a field here; the fields are {', '.join(here)}."


def _alike(name: str, known: list[str]) -> list[str]:
    """Return the names that are spelt nearly so, that are shortened to it, or that it is a part of."""
    short = [each for each in known if initials(each) == name]
    return short or [each for each in known if _is_part(name, each)] or get_close_matches(name, known, 1, MISSPELT)


def _bare(name: str, known: list[str]) -> list[str]:
    """Return the names, in singular or plural, that are all that one says."""
    bare = "_".join(word for word in name.split("_") if word not in BARE_WORDS).removesuffix("s")
    return [each for each in known if bare and each.removesuffix("s") == bare]


def _is_part(name: str, path: str) -> bool:
    """Return whether a name is shortened from a path's last, or a part of it."""
    last = path.rpartition("/")[2]
    if len(name) < LEAST_CONTAINED_CHARACTERS:
        return len(name) > 1 and initials(last) == name
    return name in last


def _rank(name: str, path: str) -> tuple[int, bool]:
    """Return how far out a path lies, those that end in the very name first."""
    return path.count("/"), not path.endswith(f"/{name}")


def fields_at(location: Sequence[int | str], request: type[BaseModel]) -> list[str]:
    """Return the names that a place of a request has, in all forms that it may have there."""
    kinds: tuple[type[BaseModel], ...] = (request,)
    for step in location:
        # Places in a list, and the names of a union's branches, are no fields.
        inner = [annotation for kind in kinds for name, annotation in _annotations(kind) if name == step]
        if inner:
            kinds = tuple(found for annotation in inner for found in _models_in(annotation))
    return list(dict.fromkeys(name for kind in kinds for name, _ in _annotations(kind)))


def initials(name: str) -> str:
    """Return `tp` of `tensor_parallel`."""
    return "".join(word[:1] for word in name.split("_"))


@cache
def _paths(request: type[BaseModel]) -> tuple[str, ...]:
    """Return the pointers of all fields; those in lists as if each were one object."""
    return tuple(dict.fromkeys(_paths_below("", request)))


def _paths_below(path: str, kind: type[BaseModel]) -> Iterator[str]:
    for name, annotation in _annotations(kind):
        yield f"{path}/{name}"
        for inner in _models_in(annotation):
            yield from _paths_below(f"{path}/{name}", inner)


def _annotations(kind: type[BaseModel]) -> list[tuple[str, Any]]:
    # Without what Pydantic has moved from an annotation into the field: only the types matter.
    return [(field.alias or name, field.annotation) for name, field in kind.model_fields.items()]


def _models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in _models_in(part))
