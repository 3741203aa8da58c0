"""Fields of a request that reach the question under their names, and none that does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from plimsoll.service.requests.carrying import Carried, carried


@dataclass(frozen=True, kw_only=True)
class Question:
    tokens: int = 7
    formats: str = "bf16"


class Part(Carried):
    counterpart: ClassVar[type] = Question

    tokens: int | None = None
    formats: list[str] | None = None


class PartWithMore(Part):
    shared_prefix_tokens: int | None = None


def test_what_is_left_out_is_the_questions_own_and_of_choices_the_first_is_taken():
    assert Part(formats=["fp8", "bf16"]).to_counterpart() == Question(tokens=7, formats="fp8")


def test_a_field_that_the_question_lacks_is_an_error_and_not_left_without_effect():
    with pytest.raises(TypeError, match="Question has no shared_prefix_tokens"):
        carried(PartWithMore(tokens=1), Question)
