"""Where a hub mirror may send us: to itself, and to hosts the operator lists, if they lie where a mirror may.

The mirror's own address is the operator's choice. A host that it redirects to
is asked at the address that was checked, so that no second answer of the name
service leads anywhere else.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import httpx

from plimsoll.service.ground.errors import HubUnreachable
from plimsoll.service.ground.settings import PREFIX

POINTER = "/model/hub"
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""What translators to IPv4 are asked at, the last four bytes being the address: RFC 6052, 2.1."""
DEFAULT_PORTS = {"http": 80, "https": 443}

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver: TypeAlias = Callable[[str, int], tuple[IpAddress, ...]]


def addresses_of(host: str, port: int) -> tuple[IpAddress, ...]:
    """Return the addresses that a host name stands for; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to ask: the address as named, or by number with the name beside it."""

    url: httpx.URL
    pinned: IpAddress | None = None

    def request(self, client: httpx.AsyncClient) -> httpx.Request:
        """Return the request; a pinned one still shows the host's name to the server and to TLS."""
        # Compressed answers could be a thousand times as large as what was sent.
        headers = {"accept": "application/json, */*", "accept-encoding": "identity"}
        if self.pinned is None:
            return client.build_request("GET", self.url, headers=headers)
        headers["host"] = self.url.netloc.decode("ascii")
        url = self.url.copy_with(host=str(self.pinned))
        return client.build_request("GET", url, headers=headers, extensions={"sni_hostname": self.url.host})


class Redirects:
    """The rule of one mirror."""

    def __init__(self, hub: httpx.URL, hosts: Collection[str], *, resolver: Resolver = addresses_of) -> None:
        self._hub = hub
        self._hosts = frozenset(host.lower() for host in hosts)
        self._resolver = resolver

    def target(self, current: httpx.URL, location: str) -> Target:
        """Return where a redirect leads; raises HubUnreachable where it must not be followed.

        May ask the name service: call it off the event loop.
        """
        try:
            # What is shown to the mirror is no part of what it says.
            url = current.copy_with(userinfo=b"").join(location)
        except (httpx.InvalidURL, ValueError) as error:
            raise _refusal("an address that is none") from error
        is_weaker = self._hub.scheme == "https" and url.scheme == "http"
        if url.scheme not in DEFAULT_PORTS or not url.host or url.userinfo or is_weaker:
            raise _refusal("an address that is not followed")
        if self._is_hub(url):
            return Target(url=url.copy_with(userinfo=self._hub.userinfo))
        if _listed_name(url) not in self._hosts:
            raise _refusal(f"{_listed_name(url)!r}, which {PREFIX}HUB_REDIRECT_HOSTS does not list")
        return Target(url=url, pinned=self._allowed_address(url))

    def _is_hub(self, url: httpx.URL) -> bool:
        is_same_port = _port(url) == _port(self._hub)
        return url.host == self._hub.host and (is_same_port or (url.scheme == "https" and _port(url) == 443))

    def _allowed_address(self, url: httpx.URL) -> IpAddress:
        """Return an address of the host that is public, or of a local kind that the mirror's is too."""
        try:
            kinds = {"public", *(_kind(address) for address in self._resolver(self._hub.host, _port(self._hub)))}
            addresses = self._resolver(url.host, _port(url))
        except OSError as error:
            raise HubUnreachable(f"The name {url.host!r} is not known.", pointer=POINTER) from error
        allowed = next((address for address in addresses if _kind(address) in kinds - {"unusable"}), None)
        if allowed is None:
            raise _refusal(f"{url.host!r}, which lies in a local network that the mirror is not in")
        return allowed


def _kind(address: IpAddress) -> str:
    """Return how far an address reaches."""
    if isinstance(address, ipaddress.IPv6Address):
        within = _ipv4_within(address)
        if within is not None:
            return _kind(within)
        if address.is_site_local:
            return "private"
    # Clouds tell a machine's own secrets at link-local addresses: no mirror keeps its files there.
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return "unusable"
    if address.is_loopback:
        return "loopback"
    return "public" if address.is_global else "private"


def _ipv4_within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one stands for, where it is reached through a translator or a tunnel."""
    if address in TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])


def _port(url: httpx.URL) -> int:
    return url.port or DEFAULT_PORTS[url.scheme]


def _listed_name(url: httpx.URL) -> str:
    """Return a host as the setting names it: with its port where that is not the scheme's own."""
    return url.host.lower() if _port(url) == DEFAULT_PORTS[url.scheme] else f"{url.host.lower()}:{_port(url)}"


def _refusal(where: str) -> HubUnreachable:
    return HubUnreachable(f"The hub mirror redirects to {where}.", pointer=POINTER)
