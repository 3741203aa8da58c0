"""`HEAD` wherever `GET` is: the same status and headers, and no body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Heads:
    """Answers HEAD as GET would be answered, without the body.

    Of an answer without a length, as a stream of events is, nothing is awaited after the head.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        rest = asyncio.timeout(None)

        async def send_head(message: Message) -> None:
            if message["type"] != "http.response.start":
                return
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not any(name == b"content-length" for name, _ in message["headers"]):
                rest.reschedule(asyncio.get_running_loop().time())

        asked = {**scope, "method": "GET"}
        try:
            async with rest:
                await self._app(asked, receive, send_head)
        except TimeoutError:
            if not rest.expired():
                raise
        # Found by the router inside, and counted outside.
        scope["route"] = asked.get("route")
