"""Who sends a request, and whether they may: found out before a byte of its body is read."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope

from plimsoll.api.auth.led_here import OwnHosts
from plimsoll.api.auth.rules import Need, need_of
from plimsoll.service.access.keys import ANONYMOUS, Caller, KeyRing
from plimsoll.service.access.rate_limits import RateLimits, WrongKeyLimits, caller_at
from plimsoll.service.ground.errors import Unauthenticated
from plimsoll.service.ground.network_addresses import is_loopback
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.records import KEY_SCOPES, KeyScope

CALLER = "plimsoll.caller"
"""Where a request's scope has who asks."""

MOST_ADDRESSES_KNOWN = 4096

_SCOPES: dict[str, KeyScope] = {scope: scope for scope in KEY_SCOPES}
_SCOPES |= {"admission": "plan", "metrics": "admin"}


class Callers:
    """Finds out who asks, whether they may, and whether they ask too often.

    A key that is shown is looked at even where none is needed: a wrong one is
    refused, and a right one sees its own alone.
    """

    def __init__(self, settings: Settings) -> None:
        self._needs_keys = settings.needs_keys
        self._own_hosts = OwnHosts((*settings.allowed_hosts, settings.host))
        self._has_client_certificates = settings.tls_client_ca_file is not None
        self._limits = RateLimits(settings.key_requests_per_second)
        self._wrong_keys = WrongKeyLimits(settings.wrong_keys_per_minute)

    async def caller(self, scope: Scope, given: dict[bytes, bytes]) -> Caller:
        """Return who sends a request with these headers; raises PlimsollError for who may not."""
        need = need_of(scope["method"], scope["path"])
        if need == "nothing":
            return ANONYMOUS
        shown = given.get(b"authorization")
        if shown is None:
            return self._without_key(scope, need)
        ring: KeyRing = scope["app"].state.services.key_ring
        try:
            caller = await ring.caller(_key(shown))
        except Unauthenticated:
            # Only then: who shares an address with an attacker, behind one proxy, is let through with a right key.
            self._wrong_keys.take(caller_at(_host(scope)))
            raise
        self._limits.take(caller.name)
        wanted = _SCOPES.get(need)
        if wanted is not None:
            caller.check(wanted)
        return caller

    def _without_key(self, scope: Scope, need: Need) -> Caller:
        is_near = is_loopback(_host(scope))
        is_free = (need == "metrics" and is_near) or (need == "admission" and self._has_client_certificates)
        if self._needs_keys and not is_free:
            raise Unauthenticated
        # A browser that a page leads here shows no certificate.
        has_shown_certificate = need == "admission" and self._has_client_certificates
        refusal = None if has_shown_certificate else self._own_hosts.refusal(scope)
        if refusal is not None:
            raise Unauthenticated(refusal)
        # The cluster's API server is one address, and its question stands in the path of every workload.
        caller = _anonymous_at(_host(scope))
        if not (is_free or is_near):
            self._limits.take(caller.name)
        return caller


def _host(scope: Scope) -> str:
    host: str = (scope.get("client") or ("",))[0]
    return host


@lru_cache(MOST_ADDRESSES_KNOWN)
def _anonymous_at(host: str) -> Caller:
    return Caller(key_id=None, scopes=ANONYMOUS.scopes, address=caller_at(host))


def _key(shown: bytes) -> str:
    """Return what follows `Bearer` in the Authorization header; nothing, which is no key, without it."""
    kind, _, key = shown.decode("latin-1").strip().partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


async def _caller(request: Request) -> Caller:
    # A coroutine, though it waits for nothing: FastAPI sends plain functions to a thread.
    caller: Caller = request.scope[CALLER]
    return caller


Asking = Annotated[Caller, Depends(_caller)]
