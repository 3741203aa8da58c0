"""How much of bodies is read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plimsoll.api.request_bodies import LARGE_BODY_BYTES, Body, BodyLimits
from plimsoll.service.ground.errors import TryLater


class Reads:
    """Reads a whole body, and holds it until told to let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, receive: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await self.let_go.wait()


def body_of(size: int) -> Any:
    """Return what an ASGI server hands on of a body, in two parts."""
    parts = [{"body": b" " * (size // 2), "more_body": more} for more in (True, False)]

    async def receive() -> Any:
        return {"type": "http.request", **parts.pop(0)}

    return receive


async def test_large_bodies_are_bounded_together_until_they_are_answered():
    app = Reads()
    limits = BodyLimits(4 * LARGE_BODY_BYTES, 60.0)

    async def read(size: int) -> None:
        body = Body(limits, body_of(size))
        try:
            await app(body.receive)
        finally:
            body.let_go()

    # Two of the largest are read at once; beside them no third, but any number of small ones.
    held = [asyncio.create_task(read(4 * LARGE_BODY_BYTES)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TryLater, match="Many large bodies"):
        await read(2 * LARGE_BODY_BYTES)
    small = asyncio.create_task(read(LARGE_BODY_BYTES))
    app.let_go.set()
    await asyncio.gather(*held, small)
    await read(4 * LARGE_BODY_BYTES)
