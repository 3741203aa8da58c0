"""Whether anybody still waits for an answer: a search asks between its parts, and so needs no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

ShouldStop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """Return false: the search goes on to its end."""
    return False
