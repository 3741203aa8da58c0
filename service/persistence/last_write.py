"""Whether the latest write reached the disk, as far as this process knows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from plimsoll.service.ground.errors import DatabaseUnavailable

TRIED_AGAIN_SECONDS = 1.0
"""How long after a write failed another is worth trying, for those who only ask whether it would succeed."""
TRUSTED_SECONDS = 10.0
"""How long one that succeeded is taken for a promise of the next, by them."""


class LastWrite:
    """The outcome of the latest write; reads say nothing of it, for a full disk answers them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failure: DatabaseUnavailable | None = None
        # Nothing is known yet.
        self._told_at = -math.inf

    def succeeded(self) -> None:
        """Note that something was stored."""
        self._failure = None
        self._told_at = self._clock()

    def failed(self, failure: DatabaseUnavailable) -> None:
        """Note that something could not be stored."""
        self._failure = failure
        self._told_at = self._clock()

    @property
    def failure(self) -> DatabaseUnavailable | None:
        """Return why the latest write failed; None where it did not."""
        return self._failure

    def take_turn(self) -> bool:
        """Return whether another is worth trying: long enough after the latest, or after the latest turn taken."""
        now = self._clock()
        if now - self._told_at < (TRUSTED_SECONDS if self._failure is None else TRIED_AGAIN_SECONDS):
            return False
        # One tries for all who ask meanwhile.
        self._told_at = now
        return True
