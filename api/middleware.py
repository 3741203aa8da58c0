"""What surrounds every request: its id, its size limit, its address checked, its time taken.

Plain ASGI: a `BaseHTTPMiddleware` costs more than the rest of a small request.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import Metrics
from api.problems import ProblemResponse

REQUEST_ID_HEADER = "x-request-id"
_GIVEN_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")

UNMATCHED_ROUTE = "unmatched"


class RequestId:
    """Gives each request an id, or keeps the one a proxy gave, and says it in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _GIVEN_REQUEST_ID.fullmatch(given) else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies above a size: by their declared length before a byte is read, else as they grow."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._most_bytes:
            await self._refusal()(scope, receive, send)
            return
        received_bytes = 0

        async def receive_counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._most_bytes:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._detail(), {"connection": "close"})
            return message

        await self._app(scope, receive_counted, send)

    def _refusal(self) -> ProblemResponse:
        headers = {"connection": "close"}  # What is still on its way is not read.
        return ProblemResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", self._detail(), headers=headers)

    def _detail(self) -> str:
        return f"The body is larger than the {self._most_bytes} bytes that are read."


class PlainAddress:
    """Refuses paths and queries with characters that no name here can have, and no database stores."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http" and (
            "\0" in scope["path"] or b"%00" in scope["query_string"] or _is_torn(scope["path"])
        ):
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


def _is_torn(path: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in path)
