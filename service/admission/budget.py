"""The time that a review has: what is searched in it ends with it, for nobody waits any more then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]

ADVISING_SHARE = 0.75
"""Of the time: what fits is sought no longer. A search is asked between its parts, which take 50 ms at rest and half a
second where twenty others want the processor, and the review's other commands want their share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """So many seconds from `began_at` on, by a clock that only goes forward."""

    seconds: float
    began_at: float
    clock: Clock

    @classmethod
    def of(cls, seconds: float, clock: Clock = time.monotonic) -> Budget:
        """Return a budget that begins now."""
        return cls(seconds=seconds, began_at=clock(), clock=clock)

    def is_spent(self) -> bool:
        """Return whether the time is over."""
        return self.clock() - self.began_at >= self.seconds

    def is_too_late_for_advice(self) -> bool:
        """Return whether what is left is for the answer itself."""
        return self.clock() - self.began_at >= ADVISING_SHARE * self.seconds
