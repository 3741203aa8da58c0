"""What stands around every request, in one layer: its id, its caller, its limits, its answer's headers, its counting.

Plain ASGI, and one: each layer more costs a request some microseconds of calls and closures before it does anything.
What each of them decides is told where it is decided, in `auth`, `request_bodies`, `compression`, `kept_answers` and
`answer_headers`; here is the order in which they are asked.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, reset_contextvars

from plimsoll.api.answers import Answer, hardening
from plimsoll.api.auth.callers import CALLER, Callers
from plimsoll.api.auth.forwarded import believe_proxies
from plimsoll.api.errors import problem_of
from plimsoll.api.metrics import Metrics
from plimsoll.api.problems import ProblemResponse
from plimsoll.api.request_bodies import Body, BodyLimits
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.figures import figure
from plimsoll.service.access.shares import StreamShares
from plimsoll.service.ground.settings import Settings

REQUEST_ID_HEADER = b"x-request-id"
UNMATCHED_ROUTE = "unmatched"

_GIVEN_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_STREAM = re.compile(r"/jobs/[^/]+/events")
# Control characters, and halves of surrogate pairs: no name here can have them, and no database stores them.
_NO_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Door:
    """Lets requests in, or answers why not, and sees their answers out."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics, search_paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._proxies = settings.trusted_proxies
        self._callers = Callers(settings)
        self._search_paths = search_paths
        self._streams = StreamShares(settings.key_streams)
        self._bodies = BodyLimits(settings.max_body_bytes, settings.body_timeout_seconds)
        self._most_seconds = settings.longest_request_seconds
        self._hardening = hardening(is_https=settings.tls_certificate_file is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = _joined(scope["headers"])
        request_id = _given_request_id(given) or os.urandom(16).hex()
        id_header = (REQUEST_ID_HEADER, request_id.encode())
        method = scope["method"]
        added = (id_header, *self._hardening)
        answer = Answer(send, given, method=method, path=scope["path"], added=added)
        # `Answer` leaves the body out.
        asked = {**scope, "method": "GET"} if method == "HEAD" else scope
        bound = bind_contextvars(request_id=request_id)
        try:
            await self._answered(asked, given, receive, answer)
        except PlimsollError as error:
            # The app answers its own, so this is a refusal, and no answer has begun.
            await problem_of(error)(asked, receive, answer.send)
        finally:
            reset_contextvars(**bound)
            # The route's template: a label for each plan id would never end.
            route = scope["route"] = asked.get("route")
            path = getattr(route, "path", UNMATCHED_ROUTE)
            self._metrics.count_request(method, path, answer.status, time.perf_counter() - started)

    async def _answered(self, scope: Scope, given: dict[bytes, bytes], receive: Receive, answer: Answer) -> None:
        """Have a request answered; raises PlimsollError for one that is refused."""
        path = scope["path"]
        if _NO_TEXT.search(path) or b"%00" in scope["query_string"]:
            detail = "The address holds characters that are no text."
            refusal = ProblemResponse(HTTPStatus.BAD_REQUEST, "malformed-request", detail)
            await refusal(scope, receive, answer.send)
            return
        believe_proxies(scope, given, self._proxies)
        caller = scope[CALLER] = await self._callers.caller(scope, given)
        bound = {} if caller.key_id is None else bind_contextvars(key_id=caller.key_id)
        try:
            if path in self._search_paths and scope["method"] == "POST":
                # Before it is read: reading it costs most of answering one that was asked before.
                scope["app"].state.services.planning.check_room(caller.name)
            if _STREAM.fullmatch(path):
                with self._streams.one(caller.name):
                    await self._passed_on(scope, given, receive, answer)
            else:
                await self._passed_on(scope, given, receive, answer)
        finally:
            reset_contextvars(**bound)

    async def _passed_on(self, scope: Scope, given: dict[bytes, bytes], receive: Receive, answer: Answer) -> None:
        """Hand a request to the app, with as much of a body as is read."""
        refusal = self._bodies.refusal(given)
        if refusal is not None:
            await refusal(scope, receive, answer.send)
            return
        if scope["method"] == "GET":
            # What comes with it, nobody reads.
            await self._in_time(scope, receive, answer)
            return
        body = Body(self._bodies, receive)
        try:
            await self._in_time(scope, body.receive, answer)
        finally:
            body.let_go()

    async def _in_time(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        """Refuse to wait any longer for an answer that has not begun, and cancel the work for it.

        One that has begun may go on: streams of events do for as long as their job runs.
        """
        limit = answer.limit = asyncio.timeout(self._most_seconds)
        try:
            async with limit:
                await self._app(scope, receive, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            if answer.is_over:
                return
            answer.limit = None
            detail = f"There was no answer within {figure(self._most_seconds)} s."
            await ProblemResponse(HTTPStatus.GATEWAY_TIMEOUT, "request-timed-out", detail)(scope, receive, answer.send)


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return a request's headers by name, one that is given several times as one list (RFC 9110, section 5.3)."""
    given = dict(headers)
    if len(given) < len(headers):
        given = {}
        for name, value in headers:
            given[name] = given[name] + b", " + value if name in given else value
    return given


def _given_request_id(given: dict[bytes, bytes]) -> str | None:
    value = given.get(REQUEST_ID_HEADER)
    if value is None:
        return None
    text = value.decode("latin-1")
    return text if _GIVEN_REQUEST_ID.fullmatch(text) else None
