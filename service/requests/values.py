"""The numbers and names that request fields are made of, and their bounds.

The bounds lie far beyond every machine and model there is: they exist so that a
slip of the keyboard is answered with a pointer to the field, and so that no
product of legal values leaves the range of a 64-bit integer by accident.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_GPUS = 1_000_000
MOST_GPUS_PER_NODE = 1_024
MOST_SEQUENCE_TOKENS = 2**24
MOST_SEQUENCES = 10_000_000
MOST_MICRO_BATCH = 4_096
MOST_TOKENS = 1e18
MOST_BYTES = 2**50
LEAST_SECONDS = 1e-9
MOST_SECONDS = 1e12
# Bytes or operations a second: slower than a modem, faster than a whole site.
LEAST_RATE = 1e3
MOST_RATE = 1e21
MOST_CONCURRENCY = 10_000_000
LEAST_TOKENS_PER_SECOND = 1e-9
MOST_TOKENS_PER_SECOND = 1e15
# One in thirty years; more than any site answers.
LEAST_REQUESTS_PER_SECOND = 1e-9
MOST_REQUESTS_PER_SECOND = 1e9
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

Degree = Annotated[int, Field(ge=1, le=MOST_GPUS), _WHOLE]
GpusPerNode = Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE), _WHOLE]
SequenceTokens = Annotated[int, Field(ge=1, le=MOST_SEQUENCE_TOKENS), _WHOLE]
Sequences = Annotated[int, Field(ge=1, le=MOST_SEQUENCES), _WHOLE]
MicroBatch = Annotated[int, Field(ge=1, le=MOST_MICRO_BATCH), _WHOLE]
Concurrency = Annotated[int, Field(ge=1, le=MOST_CONCURRENCY), _WHOLE]
ByteCount = Annotated[int, Field(ge=0, le=MOST_BYTES), _WHOLE]
PositiveByteCount = Annotated[int, Field(ge=1, le=MOST_BYTES), _WHOLE]
Tokens = Annotated[float, Field(ge=1, le=MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=LEAST_SECONDS, le=MOST_SECONDS)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
TokensPerSecond = Annotated[float, Field(ge=LEAST_TOKENS_PER_SECOND, le=MOST_TOKENS_PER_SECOND)]
RequestsPerSecond = Annotated[float, Field(ge=LEAST_REQUESTS_PER_SECOND, le=MOST_REQUESTS_PER_SECOND)]
Dollars = Annotated[float, Field(ge=0, le=MOST_DOLLARS)]
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARACTERS)]
Path = Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARACTERS)]


def whole(*, least: int, most: int) -> Any:
    """Return the annotations of a whole number between two bounds, for `Annotated[int, *...]`."""
    return (Field(ge=least, le=most), _WHOLE)
