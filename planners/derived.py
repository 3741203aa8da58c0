"""What is told about a plan beside the plan itself: each part is worked out apart, and one that fails is left out.

A plan that was found is answered. Nothing that follows from it, such as the sizes it can grow to, advice or a launch
file, is worth an error in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.plans import Omitted

T = TypeVar("T")

UNEXPECTED = "An error of the planner's own, which its log holds."

log = logging.getLogger(__name__)


class Derived:
    """Works parts of an answer out, and notes which of them it had to leave out, and why."""

    def __init__(self) -> None:
        """Start with nothing left out."""
        self._omitted: list[Omitted] = []

    @property
    def omitted(self) -> tuple[Omitted, ...]:
        """Return the parts that were left out, in the order in which they failed."""
        return tuple(self._omitted)

    def part(self, name: str, work: Callable[[], T], *, otherwise: T) -> T:
        """Return what `work` does, or `otherwise` where it raises; raises `PlanningStopped` only.

        A `PlimsollError` gives its own words as the reason. Any other is a bug, and is logged with its traceback.
        """
        try:
            return work()
        except PlanningStopped:
            raise
        except PlimsollError as error:
            self._omitted.append(Omitted(part=name, reason=error.detail))
        except Exception:
            log.exception("%s was left out of an answer", name)
            self._omitted.append(Omitted(part=name, reason=UNEXPECTED))
        return otherwise

    def several(self, name: str, items: Iterable[T]) -> tuple[T, ...]:
        """Return the items that come before one that raises, all of them where none does."""
        found: list[T] = []
        self.part(name, lambda: found.extend(items), otherwise=None)
        return tuple(found)
