"""Where in a body a validation error lies, as a JSON pointer (RFC 6901)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from plimsoll.planners.ground.figures import count_in_words
from plimsoll.service.requests.field_names import unknown_field
from plimsoll.service.requests.foreign_names import value_meant
from plimsoll.service.requests.values import MOST_NAME_CHARACTERS

# How Pydantic names a value that is no object; its own words name Python's classes.
_OBJECT_EXPECTED = frozenset({"model_type", "model_attributes_type", "dict_type", "dataclass_type"})

# Pydantic's own words are a programmer's.
_WORDS = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
}
# How other sentences of Pydantic begin, and how ours do.
_OPENINGS = (
    ("should ", "must "),
    ("Should ", "must "),
    ("String should ", "must "),
    ("List should ", "must "),
    ("Tuple should ", "must "),
    ("Dictionary should ", "must "),
    ("Decimal input should ", "must "),
)
# Which bound of an error's context is told, and how.
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}
LEAST_ROUNDED = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing wrong with a request: where, and what."""

    pointer: str
    detail: str


def field_errors(errors: Sequence[Any], body: object, request: type[BaseModel] | None = None) -> tuple[FieldError, ...]:
    """Return Pydantic's errors with pointers into `body`, its root being the empty pointer.

    Of `request`, the kind of request that the body was read as, a field is named that an unknown one was meant for.
    Unknown fields come first: where `modell` is one, `model` is missing.
    """
    told = [_of_discriminator(error) for error in errors if not _is_short_of_wrong_ones(error, errors)]
    return tuple(
        FieldError(
            pointer=(pointer := json_pointer(error["loc"], error["type"], body)),
            detail=f"{field_name(pointer)} "
            + (
                unknown_field(error["loc"], _place(error["loc"], body), request)
                if error["type"] == "extra_forbidden"
                else _detail(error)
            ),
        )
        for error in sorted(told, key=lambda error: error["type"] != "extra_forbidden")
    )


def _is_short_of_wrong_ones(error: Mapping[str, Any], errors: Sequence[Any]) -> bool:
    """Return whether a list is called too short only because those of its items that are wrong are not counted."""
    own = tuple(error["loc"])
    return error["type"] == "too_short" and any(
        other["loc"][: len(own)] == own and len(other["loc"]) > len(own) for other in errors
    )


def _of_discriminator(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an error of the field that says which object of several this is as one of that field's own."""
    if error["type"] not in ("union_tag_invalid", "union_tag_not_found"):
        return error
    location = (*error["loc"], error["ctx"]["discriminator"].strip("'"))
    if error["type"] == "union_tag_not_found":
        return {**error, "loc": location, "type": "missing"}
    expected = " or ".join(error["ctx"]["expected_tags"].rsplit(", ", 1))
    return {
        **error,
        "loc": location,
        "type": "literal_error",
        "msg": f"Input should be {expected}",
        "input": error["ctx"]["tag"],
        "ctx": {"expected": expected},
    }


def parameter_error(error: Mapping[str, Any]) -> FieldError:
    """Return Pydantic's error of a parameter of the query, the path or a header."""
    place, *_, name = error["loc"]
    return FieldError(pointer=f"/{escaped_step(name)}", detail=f"{name} in the {place} {_detail(error)}")


def field_name(pointer: str) -> str:
    """Return what a sentence calls the field that a pointer leads to: its name, or the list and its place there."""
    *_, before, last = ("", *pointer.split("/"))
    if not last:
        return "The body"
    name = last.replace("~1", "/").replace("~0", "~")
    return f"{before}/{name}" if name.isdecimal() and before else name


def json_pointer(location: Sequence[int | str], kind: str, body: object) -> str:
    """Return the pointer of one error.

    Pydantic's locations also name the branch of a union that was taken. Those
    steps lead nowhere in the body and are left out; a missing field leads nowhere
    too, but it is always the last step.
    """
    steps: list[str] = []
    place: Any = body
    for number, step in enumerate(location):
        is_last = number == len(location) - 1
        if _leads_on(place, step):
            place = place[step]
        elif not (is_last and kind == "missing"):
            continue
        steps.append(escaped_step(step))
    return "".join(f"/{step}" for step in steps)


def _place(location: Sequence[int | str], body: object) -> Any:
    """Return the innermost value of the body on the way to a location's last step."""
    place: Any = body
    for step in location[:-1]:
        if _leads_on(place, step):
            place = place[step]
    return place


def escaped_step(step: int | str) -> str:
    """Return one step as a pointer spells it; of a name longer than any, the beginning."""
    text = str(step)
    shown = text if len(text) <= MOST_NAME_CHARACTERS else f"{text[:MOST_NAME_CHARACTERS]}…"
    return shown.replace("~", "~0").replace("/", "~1")


def _leads_on(place: Any, step: int | str) -> bool:
    if isinstance(place, list):
        return isinstance(step, int) and step < len(place)
    return isinstance(place, Mapping) and step in place


def _number(bound: float) -> str:
    """Return a bound as people write it."""
    if bound == int(bound) and abs(bound) < LEAST_ROUNDED:
        return f"{int(bound):,}"
    return f"{bound:,}" if abs(bound) < LEAST_ROUNDED else count_in_words(bound)


def _detail(error: Mapping[str, Any]) -> str:
    if error["type"] in _OBJECT_EXPECTED:
        return "must be an object."
    bound = _BOUNDS.get(error["type"])
    if bound is not None:
        name, words = bound
        return f"must be {words} {_number(error['ctx'][name])}."
    message = _WORDS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    for pydantics, ours in _OPENINGS:
        if message.startswith(pydantics):
            message = ours + message.removeprefix(pydantics)
    told = sentence(message.replace(" after validation", ""))
    return told + value_meant(error["input"], error["ctx"]["expected"]) if error["type"] == "literal_error" else told


def sentence(message: str) -> str:
    """Return a message with a full stop, where it does not end in one or in a question mark."""
    return message if message.endswith((".", "?")) else f"{message}."
