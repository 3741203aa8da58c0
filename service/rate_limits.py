"""How much each caller may ask of this process: a token bucket apiece, in memory."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable

from service.errors import RateLimited
from service.recently_used import RecentlyUsed

BURST_SECONDS = 2.0
"""A bucket holds what comes in within this time: a page's requests come at once."""
MOST_CALLERS = 10_000
"""A caller who was longest silent is forgotten, and begins anew with a full bucket."""
SITE_PREFIX_BITS = 64
"""Of an IPv6 address, what tells sites apart: each is given 2**64 addresses or more. Source: RFC 6177, section 2."""


def caller_at(host: str) -> str:
    """Return what everyone at an address counts as: itself, or an IPv6 site; what is no address stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, SITE_PREFIX_BITS), strict=False))


class RateLimits:
    """Buckets by caller, each filled at the same rate."""

    def __init__(self, requests_per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the rate; 0 limits nothing."""
        self._rate = requests_per_second
        self._most = max(1.0, BURST_SECONDS * requests_per_second)
        self._clock = clock
        self._buckets: RecentlyUsed[str, tuple[float, float]] = RecentlyUsed(MOST_CALLERS)

    def take(self, caller: str) -> None:
        """Take one request from a caller's bucket; raises RateLimited where it is empty."""
        if not self._rate:
            return
        now = self._clock()
        left, filled_at = self._buckets.get(caller) or (self._most, now)
        left = min(self._most, left + (now - filled_at) * self._rate)
        if left < 1:
            self._buckets.put(caller, (left, now))
            raise RateLimited(
                requests_per_second=self._rate, retry_after_seconds=max(1, math.ceil((1 - left) / self._rate))
            )
        self._buckets.put(caller, (left - 1, now))
