"""Whether anybody still waits for an answer: a search asks between its parts, and so needs no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from plimsoll.planners.ground.errors import PlanningStopped

ShouldStop: TypeAlias = Callable[[], bool]
Item = TypeVar("Item")


def never() -> bool:
    """Return false: the search goes on to its end."""
    return False


def until_stopped(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items that come before `PlanningStopped`, all of them where nothing raises it."""
    with suppress(PlanningStopped):
        yield from items
