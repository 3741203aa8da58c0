"""Whose request a proxy hands on: the address that each hop saw, believed from the last one back."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Scope

from plimsoll.service.ground.network_addresses import Address, Network, plain_address

_FORWARDED_FOR = b"x-forwarded-for"


def believe_proxies(scope: Scope, given: dict[bytes, bytes], proxies: Sequence[Network]) -> None:
    """Take a request for that of who asked the proxy, where the proxy is this machine's or one that is trusted.

    What an untrusted peer says of itself in `X-Forwarded-For` is not read.
    """
    told = given.get(_FORWARDED_FOR)
    if told is not None and scope.get("client"):
        scope["client"] = (caller_behind(scope["client"][0], told.decode("latin-1"), proxies), 0)


def caller_behind(peer: str, forwarded_for: str, proxies: Sequence[Network]) -> str:
    """Return the address that asked the outermost of the proxies that are trusted.

    Each hop appended whom it was asked by, so the list is read from its end, for as long as who says so is trusted.
    A machine's loopback is its own: told by another machine it says nothing of who asks here.
    """
    caller = plain_address(peer)
    if caller is None:
        return peer
    for hop in reversed(forwarded_for.split(",")):
        told = _address(hop.strip())
        is_trusted = caller.is_loopback or any(caller in network for network in proxies)
        if told is None or not is_trusted or (told.is_loopback and not caller.is_loopback):
            break
        caller = told
    return str(caller)


def _address(hop: str) -> Address | None:
    """Return an address as a hop writes it, perhaps with a port; None where it is none."""
    if hop.startswith("["):
        return plain_address(hop.partition("]")[0])
    return plain_address(hop.partition(":")[0] if hop.count(":") == 1 else hop)
