"""What of an answer is no finite number: left out wherever the answer can do without it, and named."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

from plimsoll.planners.plans import Omitted
from plimsoll.service.plans.answers import InferPlanBody, TrainPlanBody

NO_NUMBER = "A number of it is not finite: the sizes and rates of the question lie too far apart."
# Files apart from each other: one of them is left out alone.
FILES = "artifacts"


def finite_body(body: TrainPlanBody | InferPlanBody) -> TrainPlanBody | InferPlanBody:
    """Return a body with finite numbers alone, and named in `omitted` what went: optional fields, and list entries.

    Raises OverflowError where the number is one that no plan can do without, such as the time of a step.
    """
    lost: list[str] = []
    kept = _kept_fields(body, "", lost)
    omitted = (Omitted(part=part, reason=NO_NUMBER) for part in dict.fromkeys(lost))
    return replace(body, **{**kept, "omitted": (*body.omitted, *omitted)})


def _kept(value: Any, name: str, lost: list[str]) -> Any:
    """Return a value without what is left out of it, which is added to `lost`; raises OverflowError where all goes."""
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError(f"{name} is {value}.")
    if isinstance(value, tuple | list):
        return type(value)(_kept_entries(value, name, lost))
    if isinstance(value, Mapping):
        return _kept_values(value, name, lost)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **_kept_fields(value, name, lost))
    return value


def _kept_fields(value: Any, name: str, lost: list[str]) -> dict[str, Any]:
    kept = {}
    for field in fields(value):
        path = f"{name}.{field.name}".lstrip(".")
        try:
            kept[field.name] = _kept(getattr(value, field.name), path, lost)
        except OverflowError:
            if field.name not in _optional_fields(value.__class__):
                raise
            kept[field.name] = None
            lost.append(path)
    return kept


def _kept_entries(values: tuple[Any, ...] | list[Any], name: str, lost: list[str]) -> list[Any]:
    kept = []
    for value in values:
        try:
            kept.append(_kept(value, name, lost))
        except OverflowError:
            # Of numbers that belong together none can be missing.
            if not is_dataclass(value):
                raise
            lost.append(name)
    return kept


def _kept_values(values: Mapping[str, Any], name: str, lost: list[str]) -> dict[str, Any]:
    kept = {}
    for key, value in values.items():
        try:
            kept[key] = _kept(value, f"{name}.{key}", lost)
        except OverflowError:
            if name != FILES:
                raise
            lost.append(f"{name}.{key}")
    return kept


@functools.cache
def _optional_fields(kind: type) -> frozenset[str]:
    """Return the fields that may be null."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if NoneType in get_args(hint))
