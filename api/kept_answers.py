"""What clients may keep: entity tags, `If-None-Match`, and who may keep what.

A stored plan never changes and neither do its files; a model, a GPU or a finished job changes with the version at most.
Such answers may be kept by the client that asked, who asks again whether they still hold: a key may have been revoked.
The tag is a digest of the bytes as they are sent, so that each format and each encoding has one of its own.
"""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEPT_PATHS = re.compile(
    r"/plans/[^/]+(/question|/artifacts/[^/]+)?|/jobs/[^/]+|/models(/.+)?|/hardware(/[^/]+)?|/formats|/openapi\.json"
)
BY_ITS_CLIENT = "private, no-cache"
# The key decides whether there is an answer at all, and `Accept` in which form.
VARIES = "Accept, Authorization"
# 128 bits of BLAKE2: two answers of one address never share a tag by chance.
TAG_BYTES = 16


class KeptAnswers:
    """Tags every answer to GET that may be kept, and says 304 to who has it already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        started: Message | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                if _may_be_kept(message, scope["path"]):
                    started = message
                    return
            elif started is not None:
                start, started = started, None
                # What comes in parts is too large to be held back for the sake of a tag.
                if not message.get("more_body", False):
                    message = _tagged(start, message, Headers(scope=scope).get("if-none-match", ""))
                await send(start)
            await send(message)

        await self._app(scope, receive, send_tagged)


def _may_be_kept(start: Message, path: str) -> bool:
    """Return whether an answer may be kept, and say so in its headers where its route did not."""
    if start["status"] != HTTPStatus.OK:
        return False
    headers = MutableHeaders(raw=start["headers"])
    if KEPT_PATHS.fullmatch(path):
        headers.setdefault("cache-control", BY_ITS_CLIENT)
        headers.add_vary_header(VARIES)
    return headers.get("cache-control", "no-store") != "no-store"


def _tagged(start: Message, body: Message, known_tags: str) -> Message:
    """Tag an answer and return its body: none where the client knows it."""
    tag = f'"{hashlib.blake2b(body["body"], digest_size=TAG_BYTES).hexdigest()}"'
    MutableHeaders(raw=start["headers"])["etag"] = tag
    if not _is_among(tag, known_tags):
        return body
    start["status"] = HTTPStatus.NOT_MODIFIED.value
    # All others stay: a browser replaces those of its copy with them, a page's own security policy among them.
    start["headers"] = [header for header in start["headers"] if header[0] != b"content-length"]
    return {**body, "body": b""}


def _is_among(tag: str, known_tags: str) -> bool:
    """Return whether a tag is listed, weak or strong (RFC 9110, section 13.1.2)."""
    listed = [each.strip().removeprefix("W/") for each in known_tags.split(",")]
    return tag in listed or listed == ["*"]
