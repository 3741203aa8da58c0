"""Whether the latest write reached the disk, as far as this process knows."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.errors import DatabaseUnavailable

TRIED_AGAIN_SECONDS = 1.0
"""How long after a write failed another is worth trying, for those who only ask whether it would succeed."""


class LastWrite:
    """The outcome of the latest write; reads say nothing of it, for a full disk answers them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failure: DatabaseUnavailable | None = None
        self._failed_at = 0.0

    def succeeded(self) -> None:
        """Note that something was stored."""
        self._failure = None

    def failed(self, failure: DatabaseUnavailable) -> None:
        """Note that something could not be stored."""
        self._failure = failure
        self._failed_at = self._clock()

    @property
    def failure(self) -> DatabaseUnavailable | None:
        """Return why the latest write failed; None where it did not."""
        return self._failure

    @property
    def is_worth_trying(self) -> bool:
        """Return whether the latest write failed, and long enough ago."""
        return self._failure is not None and self._clock() - self._failed_at >= TRIED_AGAIN_SECONDS
