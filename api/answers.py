"""An answer on its way to its client: compressed, tagged, hardened, and for HEAD without its body."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeAlias

from starlette.types import Message, Send

from plimsoll.api.compression import PackedParts, compressed, is_compressible
from plimsoll.api.kept_answers import may_be_kept, tagged

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

_EVENTS = b"text/event-stream"
_POLICY = b"content-security-policy"
# Nothing of ours is framed, guessed at or kept by others. What a page may load is the page's own to say.
_HARDENING = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (_POLICY, b"default-src 'none'; frame-ancestors 'none'"),
)
# A year, as https://hstspreload.org asks for.
_ONLY_HTTPS = (b"strict-transport-security", b"max-age=31536000")
_HARDENED = frozenset(name for name, _ in (*_HARDENING, _ONLY_HTTPS))


def hardening(*, is_https: bool) -> Headers:
    """Return what every answer has in its head unless its route says otherwise."""
    return (*_HARDENING, _ONLY_HTTPS) if is_https else _HARDENING


class Answer:
    """Sends on what the app answers to one request.

    The head is held back until the first of the body is there, for it says what becomes of that; only a stream of
    events begins before there is an event. `limit` ends the wait for an answer, and is lifted once one begins.
    """

    # fmt: off
    __slots__ = ("_added", "_given", "_is_head", "_kept_path", "_packed", "_send", "_start",
                 "is_over", "limit", "status")
    # fmt: on

    def __init__(self, send: Send, given: dict[bytes, bytes], *, method: str, path: str, added: Headers) -> None:
        """Answer a request with the headers `given`; `added` is sent wherever the app sends none by that name."""
        self._send = send
        self._given = given
        self._is_head = method == "HEAD"
        self._kept_path = path if method in ("GET", "HEAD") else None
        self._added = added
        self._start: Message | None = None
        self._packed: PackedParts | None = None
        self.limit: asyncio.Timeout | None = None
        self.status = HTTPStatus.INTERNAL_SERVER_ERROR.value
        self.is_over = False

    async def send(self, message: Message) -> None:
        """Send the head or a part of the body, as an ASGI app does."""
        if message["type"] == "http.response.start":
            if self.limit is not None:
                self.limit.reschedule(None)
            self._start = message
            if _value(message, b"content-type").startswith(_EVENTS):
                await self._begin(message)
            return
        start = self._start
        if start is not None:
            if message.get("more_body", False):
                self._packed = PackedParts.of(start, self._accepted)
            else:
                message = {"type": message["type"], "body": await self._whole(start, message.get("body", b""))}
            await self._begin(start)
        if self.is_over:
            return
        await self._send(message if self._packed is None else self._packed.part(message))

    @property
    def _accepted(self) -> str:
        return self._given.get(b"accept-encoding", b"").decode("latin-1")

    async def _whole(self, start: Message, body: bytes) -> bytes:
        """Return a body that comes in one piece as it is sent, its head made ready for that."""
        if is_compressible(start, body):
            body = await compressed(start, body, self._accepted)
        # What comes in parts is too large to be held back for the sake of a tag.
        if self._kept_path is not None and may_be_kept(start, self._kept_path):
            body = tagged(start, body, self._given.get(b"if-none-match", b"").decode("latin-1"))
        return body

    async def _begin(self, start: Message) -> None:
        """Send the head; to HEAD it is all there is, and nothing is awaited behind one that tells no length."""
        self._start = None
        self.status = start["status"]
        start["headers"] = self._hardened(start["headers"])
        await self._send(start)
        if not self._is_head:
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.is_over = True
        if self.limit is not None and not _value(start, b"content-length"):
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _hardened(self, headers: Headers) -> Headers:
        given = dict(headers)
        is_page = given.get(b"content-type", b"").startswith(b"text/html")
        if is_page or not given.keys().isdisjoint(_HARDENED):
            added: Headers = [
                each for each in self._added if each[0] not in given and not (is_page and each[0] == _POLICY)
            ]
        else:
            added = self._added
        return [*headers, *added]


def _value(start: Message, wanted: bytes) -> bytes:
    """Return a header's value; nothing without it."""
    for name, value in start["headers"]:
        if name == wanted:
            found: bytes = value
            return found
    return b""
