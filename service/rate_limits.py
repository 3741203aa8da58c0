"""How much each caller may ask of this process: a token bucket apiece, in memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable

from service.errors import RateLimited, TooManyWrongKeys
from service.network_addresses import plain_address
from service.recently_used import RecentlyUsed

BURST_SECONDS = 2.0
"""A bucket holds what comes in within this time: a page's requests come at once."""
SECONDS_A_MINUTE = 60.0
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
        if not self._per_second:
            return 0
        now = self._clock()
        left, filled_at = self._buckets.get(caller) or (self._most, now)
        left = min(self._most, left + (now - filled_at) * self._per_second)
        is_empty = left < 1
        self._buckets.put(caller, (left if is_empty else left - 1, now))
        return max(1, math.ceil((1 - left) / self._per_second)) if is_empty else 0


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
        self._buckets = _Buckets(keys_per_minute / SECONDS_A_MINUTE, keys_per_minute, clock)

    def take(self, caller: str) -> None:
        """Take one wrong key from a caller's bucket; raises TooManyWrongKeys where it is empty."""
        if wait_seconds := self._buckets.take(caller):
            raise TooManyWrongKeys(keys_per_minute=self._rate, retry_after_seconds=wait_seconds)
