"""JSON for programs, tables for people and spreadsheets: by `?format=`, or else by what `Accept` prefers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Header, Query

JSON_TYPES = ("application/json", "application/*", "*/*")
TEXT_TYPES = ("text/plain", "text/*", "*/*")
CSV_TYPES = ("text/csv", "text/*", "*/*")


async def wants_text(
    format: Annotated[  # noqa: A002 - the name on the wire
        Literal["json", "text"] | None, Query(description="`text` answers with a table; so does `Accept: text/plain`.")
    ] = None,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> bool:
    """Return whether the client wants a table; JSON where it takes both alike."""
    # A coroutine, though it waits for nothing: FastAPI sends plain functions to a thread.
    if format is not None:
        return format == "text"
    return _is_preferred(TEXT_TYPES, accept)


async def wants_csv(
    format: Annotated[  # noqa: A002 - the name on the wire
        Literal["json", "csv"] | None,
        Query(description="`csv` answers with a line for each measurement; so does `Accept: text/csv`."),
    ] = None,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> bool:
    """Return whether the client wants CSV; JSON where it takes both alike."""
    if format is not None:
        return format == "csv"
    return _is_preferred(CSV_TYPES, accept)


WantsText = Annotated[bool, Depends(wants_text)]
WantsCsv = Annotated[bool, Depends(wants_csv)]


def _is_preferred(media_ranges: tuple[str, ...], accept: str | None) -> bool:
    if accept is None or accept == "*/*":
        return False
    weights = _weights(accept)
    return _weight(weights, media_ranges) > _weight(weights, JSON_TYPES)


def _weights(accept: str) -> dict[str, float]:
    """Return the q-value of each media range (RFC 9110, section 12.5.1)."""
    weights = {}
    for part in accept.split(","):
        media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights[media_range] = next((_number(text[2:]) for text in parameters if text.startswith("q=")), 1.0)
    return weights


def _weight(weights: dict[str, float], media_ranges: tuple[str, ...]) -> float:
    """Return the weight of the most specific range that is named."""
    return next((weights[media_range] for media_range in media_ranges if media_range in weights), 0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
