"""What a client left to choose of formats and batch limits: each combination is a question of its own."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TypeVar

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import ServingQuestion

# Every combination is a search over all degrees.
MOST_CHOICES = 64

T = TypeVar("T")


def allowed_choices(question: ServingQuestion) -> tuple[ServingQuestion, ...]:
    """Return the question once for each combination allowed; raise `InvalidQuestion` where they are too many."""
    allowed = question.allowed
    if allowed is None:
        return (question,)
    names = [field.name for field in dataclasses.fields(allowed)]
    combinations = itertools.product(*(_or_own(getattr(allowed, name), getattr(question, name)) for name in names))
    chosen = tuple(
        dataclasses.replace(question, allowed=None, **dict(zip(names, combination, strict=True)))
        for combination in itertools.islice(combinations, MOST_CHOICES + 1)
    )
    if len(chosen) > MOST_CHOICES:
        raise InvalidQuestion(
            f"Formats and batch limits are searched in at most {MOST_CHOICES} combinations.", pointer="/serving"
        )
    return chosen


def _or_own(allowed: tuple[T, ...], own: T) -> tuple[T, ...]:
    return tuple(dict.fromkeys(allowed)) or (own,)
