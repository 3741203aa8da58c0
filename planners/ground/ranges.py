"""The values that fields of a question may have; the wire's checks and the planners' are both made of these.

The bounds lie far beyond every machine and model there is: they exist so that a slip of the keyboard is answered with
a pointer to the field, and so that no product of legal values leaves the range of a 64-bit integer by accident.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion

RANGE = "range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From `least`, or from anything `above`, to `most`."""

    least: float | None = None
    above: float | None = None
    most: float

    @property
    def is_whole(self) -> bool:
        """Return whether only whole numbers lie in it."""
        return isinstance(self.most, int) and isinstance(self.least, int)

    def holds(self, value: float) -> bool:
        """Return whether a value lies in it; what is no number does not."""
        is_enough = self.least <= value if self.least is not None else self.above is None or self.above < value
        return is_enough and value <= self.most

    def __str__(self) -> str:
        """Return it in words."""
        if self.above is not None:
            return f"above {self.above:g} and at most {self.most:g}"
        return f"{self.least} to {self.most}"


MOST_GPUS = 1_000_000
DEGREE = Range(least=1, most=MOST_GPUS)
SEQUENCE_TOKENS = Range(least=1, most=2**24)
CONCURRENCY = Range(least=1, most=10_000_000)
BATCHED_TOKENS = Range(least=1, most=2**27)
BLOCK_TOKENS = Range(least=1, most=65_536)
DRAFT_TOKENS = Range(least=1, most=1_000)
SECONDS = Range(least=1e-9, most=1e12)
# One in thirty years; more than any site answers.
REQUESTS_PER_SECOND = Range(least=1e-9, most=1e9)
FRACTION = Range(least=0.0, most=1.0)
SHARE = Range(above=0.0, most=1.0)


def asked(bounds: Range, default: Any = None) -> Any:
    """Return a question's field with the values that it may have."""
    return dataclasses.field(default=default, metadata={RANGE: bounds})


def check_ranges(part: Any, place: str) -> None:
    """Raise `InvalidQuestion` where a field of a part of a question, found at `place`, has a value that it may not."""
    kind: type = type(part)
    for name, bounds in _bounded(kind):
        value = getattr(part, name)
        if value is not None and not bounds.holds(value):
            raise InvalidQuestion(f"{name} must be {bounds}.", pointer=f"{place}/{name}")


@cache
def _bounded(kind: type) -> tuple[tuple[str, Range], ...]:
    return tuple(_bounds_of(kind))


def _bounds_of(kind: Any) -> Iterator[tuple[str, Range]]:
    for field in dataclasses.fields(kind):
        if RANGE in field.metadata:
            yield field.name, field.metadata[RANGE]
