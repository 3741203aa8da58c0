"""What surrounds every request: its id, its answer's headers, its body's limits, its address checked, its time taken.

Plain ASGI: a `BaseHTTPMiddleware` costs more than the rest of a small request.
"""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from uuid import uuid4

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plimsoll.api.metrics import Metrics
from plimsoll.api.problems import ProblemResponse
from plimsoll.planners.ground.figures import figure
from plimsoll.service.ground.errors import TryLater

REQUEST_ID_HEADER = b"x-request-id"
_GIVEN_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")

# Control characters, and halves of surrogate pairs.
_NO_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

UNMATCHED_ROUTE = "unmatched"
# Larger bodies are counted together until they are answered: as JSON in memory they take about ten times their bytes.
LARGE_BODY_BYTES = 2**20
# In bodies of the largest size that is read.
MOST_LARGE_AT_ONCE = 2

# What is still on its way is not read.
_CLOSE = {"connection": "close"}


# Nothing of ours is framed, guessed at or kept by others. What a page may load is the page's own to say.
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_DEFAULT_HEADERS = ((b"cache-control", b"no-store"),)
_NO_CONTENT_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
# A year, as https://hstspreload.org asks for.
_ONLY_HTTPS = (b"strict-transport-security", b"max-age=31536000")


class AnswerHeaders:
    """Gives each request an id, or keeps the one a proxy gave, for answer and log; and hardens the answer."""

    def __init__(self, app: ASGIApp, *, is_https: bool) -> None:
        self._app = app
        self._added = (*_SECURITY_HEADERS, _ONLY_HTTPS) if is_https else _SECURITY_HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_request_id(scope) or uuid4().hex
        id_header = (REQUEST_ID_HEADER, request_id.encode())

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], id_header]
                given = dict(headers)
                headers += [header for header in (*self._added, *_DEFAULT_HEADERS) if header[0] not in given]
                if _NO_CONTENT_POLICY[0] not in given and not given.get(b"content-type", b"").startswith(b"text/html"):
                    headers.append(_NO_CONTENT_POLICY)
                message["headers"] = headers
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_headers)


def _given_request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER:
            given: str = value.decode("latin-1")
            return given if _GIVEN_REQUEST_ID.fullmatch(given) else None
    return None


class BodyLimit:
    """Refuses bodies above a size, those that come slower than in a given time, and too many large ones at once.

    By their declared length before a byte is read, else as they grow.
    """

    def __init__(self, app: ASGIApp, *, most_bytes: int, most_seconds: float) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self._large_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._most_bytes:
            await self._refusal()(scope, receive, send)
            return
        received_bytes = large_bytes = 0
        is_complete = False
        deadline = time.monotonic() + self._most_seconds

        async def receive_counted() -> Message:
            nonlocal received_bytes, large_bytes, is_complete
            # What comes after the body is the client's leaving, and that may take as long as it likes.
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, self._slow_detail(), _CLOSE) from error
            received_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received_bytes > self._most_bytes:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._detail(), _CLOSE)
            if received_bytes > LARGE_BODY_BYTES:
                self._large_bytes += received_bytes - large_bytes
                large_bytes = received_bytes
                if self._large_bytes > MOST_LARGE_AT_ONCE * self._most_bytes:
                    raise TryLater("Many large bodies are being read.", retry_after_seconds=1)
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._large_bytes -= large_bytes

    def _refusal(self) -> ProblemResponse:
        return ProblemResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", self._detail(), headers=_CLOSE)

    def _detail(self) -> str:
        return f"The body is larger than the {self._most_bytes} bytes that are read."

    def _slow_detail(self) -> str:
        return f"The body did not arrive within {figure(self._most_seconds)} s."


class TimeLimit:
    """Refuses to wait any longer for an answer that has not begun, and cancels the work for it.

    One that has begun may go on: streams of events do for as long as their job runs.
    """

    def __init__(self, app: ASGIApp, *, most_seconds: float) -> None:
        self._app = app
        self._most_seconds = most_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = asyncio.timeout(self._most_seconds)

        async def send_begun(message: Message) -> None:
            if message["type"] == "http.response.start":
                limit.reschedule(None)
            await send(message)

        try:
            async with limit:
                await self._app(scope, receive, send_begun)
        except TimeoutError:
            if not limit.expired():
                raise
            detail = f"There was no answer within {figure(self._most_seconds)} s."
            await ProblemResponse(HTTPStatus.GATEWAY_TIMEOUT, "request-timed-out", detail)(scope, receive, send)


class PlainAddress:
    """Refuses paths and queries with characters that no name here can have, and no database stores."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http" and (_NO_TEXT.search(scope["path"]) or b"%00" in scope["query_string"]):
            refusal = ProblemResponse(
                HTTPStatus.BAD_REQUEST, "malformed-request", "The address holds characters that are no text."
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Timing:
    """Counts requests and their seconds by route, method and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            # The route's template: a label for each plan id would never end.
            route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
            self._metrics.count_request(scope["method"], route, status, time.perf_counter() - started)
