"""How much each caller may ask of this process: a token bucket apiece, in memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable

from plimsoll.planners.ground.units import SECONDS_PER_DAY, SECONDS_PER_MINUTE
from plimsoll.service.ground.errors import RateLimited, StorageLimitReached, TooManyWrongKeys
from plimsoll.service.ground.network_addresses import plain_address
from plimsoll.service.ground.recently_used import RecentlyUsed

BURST_SECONDS = 2.0
"""A bucket holds what comes in within this time: a page's requests come at once."""
MOST_CALLERS = 10_000
"""A caller who was longest silent is forgotten, and begins anew with a full bucket."""
SITE_PREFIX_BITS = 64
"""Of an IPv6 address, what tells sites apart: each is given 2**64 addresses or more. Source: RFC 6177, section 2."""


def caller_at(host: str) -> str:
    """Return what everyone at an address counts as: itself, or an IPv6 site; what is no address stands for itself."""
    address = plain_address(host)
    if address is None:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, SITE_PREFIX_BITS), strict=False))


class _Buckets:
    """Token buckets by caller, each filled at the same rate."""

    def __init__(self, per_second: float, most: float, clock: Callable[[], float]) -> None:
        """Set the rate; 0 limits nothing."""
        self._per_second = per_second
        self._most = max(1.0, most)
        self._clock = clock
        self._buckets: RecentlyUsed[str, tuple[float, float]] = RecentlyUsed(MOST_CALLERS)

    def take(self, caller: str) -> int:
        """Take one token and return 0; where there is none, return in how many whole seconds there will be."""
        wait_seconds = self.wait_seconds(caller)
        if not wait_seconds:
            self.spend(caller, 1)
        return wait_seconds

    def wait_seconds(self, caller: str) -> int:
        """Return in how many whole seconds a caller has a token; 0 where it has one."""
        left = self._left(caller)
        return max(1, math.ceil((1 - left) / self._per_second)) if self._per_second and left < 1 else 0

    def spend(self, caller: str, tokens: float) -> None:
        """Take so many tokens, whether or not they are there."""
        self._buckets.put(caller, (self._left(caller) - tokens, self._clock()))

    def _left(self, caller: str) -> float:
        now = self._clock()
        left, filled_at = self._buckets.get(caller) or (self._most, now)
        return min(self._most, left + (now - filled_at) * self._per_second)


class RateLimits:
    """How many requests each caller may send."""

    def __init__(self, requests_per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the rate; 0 limits nothing."""
        self._rate = requests_per_second
        self._buckets = _Buckets(requests_per_second, BURST_SECONDS * requests_per_second, clock)

    def take(self, caller: str) -> None:
        """Take one request from a caller's bucket; raises RateLimited where it is empty."""
        if wait_seconds := self._buckets.take(caller):
            raise RateLimited(requests_per_second=self._rate, retry_after_seconds=wait_seconds)


class WrongKeyLimits:
    """How many wrong keys each address may show; asked about those alone, it never stands before a right one."""

    def __init__(self, keys_per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the rate; 0 limits nothing."""
        self._rate = keys_per_minute
        self._buckets = _Buckets(keys_per_minute / SECONDS_PER_MINUTE, keys_per_minute, clock)

    def take(self, caller: str) -> None:
        """Take one wrong key from a caller's bucket; raises TooManyWrongKeys where it is empty."""
        if wait_seconds := self._buckets.take(caller):
            raise TooManyWrongKeys(keys_per_minute=self._rate, retry_after_seconds=wait_seconds)


class StorageLimits:
    """How many bytes of new plans, jobs and measurements each caller may have stored."""

    def __init__(self, bytes_per_day: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the rate; 0 limits nothing."""
        self._bytes_per_day = bytes_per_day
        self._buckets = _Buckets(bytes_per_day / SECONDS_PER_DAY, bytes_per_day, clock)

    def check(self, caller: str) -> None:
        """Raise StorageLimitReached for a caller who has nothing left."""
        if wait_seconds := self._buckets.wait_seconds(caller):
            raise StorageLimitReached(bytes_per_day=self._bytes_per_day, retry_after_seconds=wait_seconds)

    def note(self, caller: str, stored_bytes: int) -> None:
        """Take from a caller what was stored for it, though it be more than was left."""
        self._buckets.spend(caller, stored_bytes)
