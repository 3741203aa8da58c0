"""Network addresses as clients and operators write them."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# The same few are asked about with every request, and reading one takes as long as routing it.
MOST_KNOWN = 4096
# What strangers write may be long, and is not kept then.
MOST_KNOWN_CHARACTERS = 100


def plain_address(text: str) -> Address | None:
    """Return an address without its zone, an IPv4 one written as IPv6 as what it is; None for what is none."""
    return _known(text) if len(text) <= MOST_KNOWN_CHARACTERS else _read(text)


def _read(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    within = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return within or address


_known = lru_cache(MOST_KNOWN)(_read)


def is_loopback(host: str) -> bool:
    """Return whether a host, by address or as `localhost`, is this machine."""
    address = plain_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback
