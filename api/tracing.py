"""A span for each request, below the one that the client names. Plain ASGI, and there only where traces are wanted."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plimsoll.api.door import UNMATCHED_ROUTE
from plimsoll.service.observability.tracing import TRACEPARENT, Tracer

_TRACEPARENT_HEADER = TRACEPARENT.encode()


class Traced:
    """Traces requests; names and attributes follow OpenTelemetry's semantic conventions for HTTP."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        given = (value for name, value in scope["headers"] if name == _TRACEPARENT_HEADER)
        parent = next((value.decode("latin-1") for value in given), None)
        with self._tracer.span(method, "server", parent=parent, attributes={"http.request.method": method}) as span:

            async def send_noting_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self._app(scope, receive, send_noting_status)
            finally:
                route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
