"""How soon what died is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_RESTART_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 15.0
"""Whatever died is to work again within a minute, its own start included."""


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The pauses before something is started again: short after a good while, ever longer while it keeps dying."""

    good_while_seconds: float
    _next_seconds: float = 0.0

    def pause_seconds(self, lived_seconds: float) -> float:
        """Return how long to wait now that it died, having lived for so long."""
        if lived_seconds > self.good_while_seconds or self._next_seconds == 0.0:
            self._next_seconds = FIRST_RESTART_SECONDS
        pause = self._next_seconds
        self._next_seconds = min(2 * pause, LONGEST_RESTART_SECONDS)
        return pause
