"""Lets a request through, or answers why not. Plain ASGI, and outside everything that reads a body."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated

import structlog
from fastapi import Depends
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from plimsoll.api.auth.led_here import OwnHosts
from plimsoll.api.auth.rules import Need, need_of
from plimsoll.api.errors import problem_of
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.access.keys import ANONYMOUS, Caller, KeyRing
from plimsoll.service.access.rate_limits import RateLimits, WrongKeyLimits, caller_at
from plimsoll.service.access.shares import StreamShares
from plimsoll.service.ground.errors import StreamLimitReached, TryLater, Unauthenticated
from plimsoll.service.ground.network_addresses import is_loopback
from plimsoll.service.ground.settings import Settings
from plimsoll.service.persistence.records import KEY_SCOPES, KeyScope

_CALLER = "plimsoll.caller"
_STREAM = re.compile(r"/jobs/[^/]+/events")
_SCOPES: dict[str, KeyScope] = {scope: scope for scope in KEY_SCOPES}
_SCOPES |= {"admission": "plan", "metrics": "admin"}


class Authentication:
    """Finds out who asks, whether they may, and whether they ask too often.

    A key that is shown is looked at even where none is needed: a wrong one is
    refused, and a right one sees its own alone.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._needs_keys = settings.needs_keys
        self._own_hosts = OwnHosts((*settings.allowed_hosts, settings.host))
        self._has_client_certificates = settings.tls_client_ca_file is not None
        self._limits = RateLimits(settings.key_requests_per_second)
        self._wrong_keys = WrongKeyLimits(settings.wrong_keys_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        need = need_of(scope["method"], scope["path"])
        try:
            caller = await self._caller(scope, need)
        except PlimsollError as error:
            await problem_of(error)(scope, receive, send)
            return
        scope[_CALLER] = caller
        if caller.key_id is None:
            await self._app(scope, receive, send)
            return
        with structlog.contextvars.bound_contextvars(key_id=caller.key_id):
            await self._app(scope, receive, send)

    async def _caller(self, scope: Scope, need: Need) -> Caller:
        key = _shown_key(scope)
        if key is None:
            return self._without_key(scope, need)
        if need == "nothing":
            return ANONYMOUS
        ring: KeyRing = scope["app"].state.services.key_ring
        try:
            caller = await ring.caller(key)
        except Unauthenticated:
            # Only then: who shares an address with an attacker, behind one proxy, is let through with a right key.
            self._wrong_keys.take(_address(scope))
            raise
        self._limits.take(caller.name)
        wanted = _SCOPES.get(need)
        if wanted is not None:
            caller.check(wanted)
        return caller

    def _without_key(self, scope: Scope, need: Need) -> Caller:
        if need == "nothing":
            return ANONYMOUS
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
        caller = dataclasses.replace(ANONYMOUS, address=_address(scope))
        if not (is_free or is_near):
            self._limits.take(caller.name)
        return caller


class StreamLimit:
    """Refuses a stream of events to who holds as many open as one may. Inside `Authentication`, which says who asks."""

    def __init__(self, app: ASGIApp, *, most_of_one: int) -> None:
        self._app = app
        self._shares = StreamShares(most_of_one)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not _STREAM.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        caller: Caller = scope[_CALLER]
        try:
            with self._shares.one(caller.name):
                await self._app(scope, receive, send)
        except StreamLimitReached as error:
            # Nothing inside raises it, so no answer has begun.
            await problem_of(error)(scope, receive, send)


class SearchLimit:
    """Refuses a question to who has too many waiting already, before it is read: reading it costs most of answering it.

    So a question that was answered before is refused with the rest. Inside `Authentication`, which says who asks.
    """

    def __init__(self, app: ASGIApp, *, paths: frozenset[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http" and scope["path"] in self._paths and scope["method"] == "POST":
            caller: Caller = scope[_CALLER]
            try:
                scope["app"].state.services.planning.check_room(caller.name)
            except TryLater as error:
                await problem_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host(scope: Scope) -> str:
    host: str = (scope.get("client") or ("",))[0]
    return host


def _address(scope: Scope) -> str:
    return caller_at(_host(scope))


def _shown_key(scope: Scope) -> str | None:
    """Return what follows `Bearer` in the Authorization header; None without the header."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = value.decode("latin-1").strip().partition(" ")
            return key.strip() if kind.lower() == "bearer" else ""
    return None


async def _caller(request: Request) -> Caller:
    # A coroutine, though it waits for nothing: FastAPI sends plain functions to a thread.
    caller: Caller = request.scope[_CALLER]
    return caller


Asking = Annotated[Caller, Depends(_caller)]
