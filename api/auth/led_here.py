"""Whether a page of another site led a browser of this machine here.

A service on loopback answers this machine without a key, and a browser on it runs anyone's pages. Such a page can
send requests here (it says so in `Origin`), or have its own name resolved to 127.0.0.1, so that for the browser the
service is the page's own site (then `Host` says the name). No one can own a name without a dot, or an address.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from service.settings import is_loopback

MOST_REMEMBERED = 256


def is_led_here(scope: Scope) -> bool:
    """Return whether a request names a host that strangers may own, or comes from a page of another site."""
    host = origin = None
    for name, value in scope["headers"]:
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
    return _is_foreign(host, origin)


@lru_cache(MOST_REMEMBERED)
def _is_foreign(host: str | None, origin: str | None) -> bool:
    try:
        if host is not None and _may_be_owned(urlsplit(f"//{host}").hostname or ""):
            return True
        if origin is None:
            return False
        page = urlsplit(origin)
        return page.netloc != host and not is_loopback(page.hostname or "")
    except ValueError:
        return True


def _may_be_owned(host: str) -> bool:
    """Return whether a host is a name that someone can register."""
    name = host.removesuffix(".")
    if "." not in name or name.endswith(".localhost"):
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False
