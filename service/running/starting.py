"""What a process says when it cannot start: one line, with the setting or the reason, and no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.ground.settings import PREFIX

CANNOT_START = 1


class CannotStart(Exception):
    """A process lacks what it needs; the text says what, and what to do."""


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """End the process with one line on stderr where what it was given does not let it start."""
    try:
        yield
    except (ValidationError, PlimsollError, CannotStart, OSError) as error:
        sys.stderr.write(f"Plimsoll cannot start: {_line(error)}\n")
        raise SystemExit(CANNOT_START) from None


def _line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(_setting(dict(told)) for told in error.errors(include_url=False, include_input=False))
    text = error.detail if isinstance(error, PlimsollError) else str(error)
    return " ".join(text.split())


def _setting(told: dict[str, object]) -> str:
    place = told["loc"]
    message = str(told["msg"]).removeprefix("Value error, ").rstrip(".")
    # What concerns several settings names them itself.
    return f"{PREFIX}{str(place[0]).upper()}: {message}." if isinstance(place, tuple) and place else f"{message}."
