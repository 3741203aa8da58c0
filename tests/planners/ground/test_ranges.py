"""Ranges of a question's fields, and that the wire asks for the same."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.ranges import DEGREE, FRACTION, RANGE, SHARE, Range, check_ranges
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion
from plimsoll.service.requests.serving import (
    Disaggregated,
    ServiceLevelPart,
    ServingLayoutPart,
    ServingPart,
    Speculative,
)
from plimsoll.service.requests.values import Wire


@pytest.mark.parametrize(
    ("bounds", "value", "is_held"),
    [
        (DEGREE, 0, False), (DEGREE, 1, True), (DEGREE, 1_000_000, True), (DEGREE, 1_000_001, False),
        (FRACTION, 0, True), (FRACTION, 1.0, True), (FRACTION, 1.001, False),
        (SHARE, 0.0, False), (SHARE, 1e-9, True), (SHARE, 1, True), (SHARE, math.nan, False),
    ],
)  # fmt: skip
def test_a_range_holds_what_lies_in_it(bounds: Range, value: float, is_held: bool):
    assert bounds.holds(value) is is_held


def test_a_value_out_of_its_fields_range_is_refused_at_its_place():
    with pytest.raises(InvalidQuestion, match="tensor_parallel must be 1 to 1000000") as refused:
        check_ranges(ServingLayoutRequest(tensor_parallel=0), "/layout")
    assert refused.value.pointer == "/layout/tensor_parallel"


@pytest.mark.parametrize(
    ("part", "question"),
    [
        (ServingPart, ServingQuestion),
        *((part, part.counterpart) for part in (ServingLayoutPart, ServiceLevelPart, Speculative, Disaggregated)),
    ],
)
def test_the_wire_bounds_the_fields_that_the_question_does_and_as_it_does(part: type[Wire], question: type[Any]):
    asked = {field.name: field.metadata[RANGE] for field in dataclasses.fields(question) if RANGE in field.metadata}
    bounds = {name: _most(field) for name, field in part.model_json_schema()["properties"].items()}
    assert {name: most for name, most in bounds.items() if most is not None} == {
        name: each.most for name, each in asked.items()
    }


def _most(field: dict[str, Any]) -> float | None:
    """Return the largest value of a field of a schema, which may be left out or listed; None where it has no bound."""
    forms = [field, *field.get("anyOf", ()), *field.get("oneOf", ())]
    forms += [form for each in forms for form in each.get("oneOf", ())]
    return next((form["maximum"] for form in forms if "maximum" in form), None)
