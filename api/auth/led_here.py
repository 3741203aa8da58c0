"""Whether a page of another site led a browser here.

A browser runs anyone's pages, and reaches what its machine reaches: a service on loopback, or one that answers anyone.
Such a page can send requests here (it says so in `Origin`), or have its own name resolved to this service's address, so
that for the browser the service is the page's own site; then `Host` says the name. An address cannot be resolved anew,
and `localhost` is always this machine; every other name must be one that the service is known by.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import Scope

from plimsoll.service.ground.network_addresses import is_loopback, plain_address
from plimsoll.service.ground.settings import PREFIX

ANY_HOST = "*"
ANY_UNDER = "*."
MOST_SHOWN_CHARACTERS = 100
# Nearly every request names the same one. A host's name has 253 characters at most, and longer ones are not kept.
MOST_HOSTS_KNOWN = 1024
MOST_HOST_CHARACTERS = 300


class OwnHosts:
    """The names that a service is known by."""

    def __init__(self, names: Iterable[str]) -> None:
        known = {name.lower().removesuffix(".") for name in names}
        self._is_open = ANY_HOST in known
        self._names = {name for name in known if not name.startswith(ANY_HOST)} | {"localhost"}
        self._endings = (".localhost", *(name[1:] for name in known if name.startswith(ANY_UNDER)))
        self._known_host = lru_cache(MOST_HOSTS_KNOWN)(self._is_own_host)

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request is a stranger's page's; None where nothing says that it is."""
        hosts = _values(scope, b"host")
        for host in hosts:
            is_own = self._known_host if len(host) <= MOST_HOST_CHARACTERS else self._is_own_host
            if not is_own(host):
                return (
                    f"The request names the host {host[:MOST_SHOWN_CHARACTERS]!r}, which {PREFIX}ALLOWED_HOSTS does "
                    "not list. "
                )
        for origin in _values(scope, b"origin"):
            if not self._is_own_page(origin, hosts):
                return f"The request comes from a page of another site, {origin[:MOST_SHOWN_CHARACTERS]!r}. "
        return None

    def _is_own_host(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        return self._is_open or plain_address(name) is not None or self._is_listed(name)

    def _is_listed(self, name: str) -> bool:
        return name in self._names or name.endswith(self._endings)

    def _is_own_page(self, origin: str, hosts: list[str]) -> bool:
        """Return whether a page is the service's own, one of a host that is listed, or of this machine as the host."""
        netloc = origin.partition("://")[2]
        name = _name(netloc)
        if name is None:
            return False
        if is_loopback(name):
            return all(is_loopback(_name(host) or "") for host in hosts)
        return netloc in hosts or self._is_listed(name)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _name(netloc: str) -> str | None:
    """Return the name or the address of a host, without its port; None where it is none."""
    try:
        parts = urlsplit(f"//{netloc}")
        # `evil.com@127.0.0.1` is no host, and nothing else may follow one.
        name = parts.hostname if parts.netloc == netloc and "@" not in netloc else None
    except ValueError:
        return None
    return name.removesuffix(".") if name else None
