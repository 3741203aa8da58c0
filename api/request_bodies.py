"""How much of bodies is read: how large one is, how long it takes to come, and how many large ones come at once."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from plimsoll.api.problems import ProblemResponse
from plimsoll.planners.ground.figures import figure
from plimsoll.service.ground.errors import TryLater

# Larger bodies are counted together until they are answered: as JSON in memory they take about ten times their bytes.
LARGE_BODY_BYTES = 2**20
# In bodies of the largest size that is read.
MOST_LARGE_AT_ONCE = 2

# What is still on its way is not read.
_CLOSE = {"connection": "close"}


class BodyLimits:
    """Refuses bodies above a size, those that come slower than in a given time, and too many large ones at once.

    By their declared length before a byte is read, else as they grow.
    """

    def __init__(self, most_bytes: int, most_seconds: float) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds
        self.large_bytes = 0

    def refusal(self, given: dict[bytes, bytes]) -> ProblemResponse | None:
        """Return the refusal of a request that declares too much in its headers."""
        declared = given.get(b"content-length", b"")
        if not declared.isdigit() or int(declared[:20]) <= self.most_bytes:
            return None
        return ProblemResponse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", self.detail(), headers=_CLOSE)

    def detail(self) -> str:
        """Return what is said of a body that is too large."""
        return f"The body is larger than the {self.most_bytes} bytes that are read."


class Body:
    """One body as it arrives; none arrives at once."""

    __slots__ = ("_deadline", "_is_complete", "_large_bytes", "_limits", "_receive", "_received_bytes")

    def __init__(self, limits: BodyLimits, receive: Receive) -> None:
        self._limits = limits
        self._receive = receive
        self._received_bytes = self._large_bytes = 0
        self._is_complete = False
        self._deadline = time.monotonic() + limits.most_seconds

    async def receive(self) -> Message:
        """Return what comes next, as an ASGI server does."""
        # What comes after the body is the client's leaving, and that may take as long as it likes.
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            detail = f"The body did not arrive within {figure(self._limits.most_seconds)} s."
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, _CLOSE) from error
        self._received_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._received_bytes > self._limits.most_bytes:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, self._limits.detail(), _CLOSE)
        if self._received_bytes > LARGE_BODY_BYTES:
            self._hold(self._received_bytes)
        return message

    def let_go(self) -> None:
        """Count it no longer among the large ones."""
        self._limits.large_bytes -= self._large_bytes
        self._large_bytes = 0

    def _hold(self, large_bytes: int) -> None:
        self._limits.large_bytes += large_bytes - self._large_bytes
        self._large_bytes = large_bytes
        if self._limits.large_bytes > MOST_LARGE_AT_ONCE * self._limits.most_bytes:
            raise TryLater("Many large bodies are being read.", retry_after_seconds=1)
