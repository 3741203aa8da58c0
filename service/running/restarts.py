"""How long to wait before what died is started again: a process, or a worker's connection to its queue."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE_SECONDS = 0.5
# Whatever died is to work again within 60 s, its own start included (docs/reliability.md: 17.6 s at the longest).
LONGEST_PAUSE_SECONDS = 15.0


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The pauses before the restarts of one thing, each twice as long as the one before while it keeps dying.

    What lived for more than `good_while_seconds` begins anew with the shortest.
    """

    good_while_seconds: float
    _pause_seconds: float = field(default=FIRST_PAUSE_SECONDS, init=False)

    def pause_seconds(self, lived_seconds: float) -> float:
        """Return how long to wait now that it died, having lived for so long; the next pause is longer."""
        pause = FIRST_PAUSE_SECONDS if lived_seconds > self.good_while_seconds else self._pause_seconds
        self._pause_seconds = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return pause
