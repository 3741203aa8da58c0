"""Whether a call is sent again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from plimsoll.client.errors import ClientError, Refused, Unreachable

REFUSED_UNDONE = 429
"""Refused before anything was done, whatever the call: it may always be sent again."""
PASSING_FAILURES = (502, 503)
"""A proxy without a replica, a hub or a database that is away. A 504 took its whole time already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often and how patiently a call is sent again.

    Waits grow twofold from `first_wait_seconds` and are drawn between nothing
    and that length, so that many clients do not come back at once ("full jitter",
    Brooker 2015, https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    What the service asks in `Retry-After` is waited in full, and not at all where it is longer
    than `longest_wait_seconds`: the refusal is raised then, and says how long.
    """

    most: int = 3
    first_wait_seconds: float = 0.25
    longest_wait_seconds: float = 30.0
    draw: Callable[[], float] = field(default=random.random, repr=False)
    """Returns a number from 0 to 1."""

    def wait_seconds(self, error: ClientError, *, retried: int, is_repeatable: bool) -> float | None:
        """Return how long to wait before the call is sent again; None where it is not.

        `retried` is how often it was already; `is_repeatable` says that doing it twice is doing it once.
        """
        if retried >= self.most or not _may_pass(error, is_repeatable=is_repeatable):
            return None
        if isinstance(error, Refused) and error.retry_after_seconds is not None:
            asked = error.retry_after_seconds
            return asked if asked <= self.longest_wait_seconds else None
        return self.draw() * min(self.longest_wait_seconds, self.first_wait_seconds * float(2**retried))


def retry_after_seconds(value: str | None, *, now: datetime | None = None) -> float | None:
    """Return the wait that a `Retry-After` header asks for: seconds or a date (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _may_pass(error: ClientError, *, is_repeatable: bool) -> bool:
    if isinstance(error, Refused):
        status = error.problem.status
        return status == REFUSED_UNDONE or (is_repeatable and status in PASSING_FAILURES)
    return is_repeatable and isinstance(error, Unreachable)
