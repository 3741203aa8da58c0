"""The numbers and names that request fields are made of, and their bounds.

Those of a planner's question are the planner's own (`planners/ground/ranges.py`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from plimsoll.planners.ground.ranges import (
    CONCURRENCY,
    DEGREE,
    FRACTION,
    REQUESTS_PER_SECOND,
    SECONDS,
    SEQUENCE_TOKENS,
    Range,
)

MOST_GPUS_PER_NODE = 1_024
MOST_SEQUENCES = 10_000_000
MOST_MICRO_BATCH = 4_096
MOST_TOKENS = 1e18
MOST_BYTES = 2**50
# Bytes or operations a second: slower than a modem, faster than a whole site.
LEAST_RATE = 1e3
MOST_RATE = 1e21
LEAST_TOKENS_PER_SECOND = 1e-9
MOST_TOKENS_PER_SECOND = 1e15
MOST_DOLLARS = 1e9
MOST_NAME_CHARACTERS = 200
MOST_PATH_CHARACTERS = 4_096


class Wire(BaseModel):
    """A part of a request: unknown fields are refused, texts are never read as numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)


def _whole(value: Any) -> Any:
    """Return 2e9 as the whole number it is; leave everything else to the strict check."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


# Behind the bounds of a field: in front of them it would hide them from the contract.
_WHOLE = BeforeValidator(_whole)


def within(bounds: Range) -> Any:
    """Return the annotations of a number in a range, for `Annotated[int, *...]`."""
    if bounds.above is not None:
        return (Field(gt=bounds.above, le=bounds.most),)
    bounded = Field(ge=bounds.least, le=bounds.most)
    return (bounded, _WHOLE) if bounds.is_whole else (bounded,)


Degree = Annotated[int, *within(DEGREE)]
GpusPerNode = Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE), _WHOLE]
SequenceTokens = Annotated[int, *within(SEQUENCE_TOKENS)]
Sequences = Annotated[int, Field(ge=1, le=MOST_SEQUENCES), _WHOLE]
MicroBatch = Annotated[int, Field(ge=1, le=MOST_MICRO_BATCH), _WHOLE]
Concurrency = Annotated[int, *within(CONCURRENCY)]
ByteCount = Annotated[int, Field(ge=0, le=MOST_BYTES), _WHOLE]
PositiveByteCount = Annotated[int, Field(ge=1, le=MOST_BYTES), _WHOLE]
Tokens = Annotated[float, Field(ge=1, le=MOST_TOKENS)]
Seconds = Annotated[float, *within(SECONDS)]
Fraction = Annotated[float, *within(FRACTION)]
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
TokensPerSecond = Annotated[float, Field(ge=LEAST_TOKENS_PER_SECOND, le=MOST_TOKENS_PER_SECOND)]
RequestsPerSecond = Annotated[float, *within(REQUESTS_PER_SECOND)]
Dollars = Annotated[float, Field(ge=0, le=MOST_DOLLARS)]
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARACTERS)]
Path = Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARACTERS)]


def whole(*, least: int, most: int) -> Any:
    """Return the same of a whole number between two bounds."""
    return within(Range(least=least, most=most))
