"""How much of bodies is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from plimsoll.api.app import create_app
from plimsoll.api.request_bodies import LARGE_BODY_BYTES, Body, BodyLimits
from plimsoll.service.ground.errors import TryLater
from plimsoll.service.ground.settings import Settings

JSON = {"content-type": "application/json"}


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


async def test_who_sends_a_large_body_too_many_is_told_to_come_back(database_url: str):
    largest = 2 * LARGE_BODY_BYTES
    app = create_app(Settings(database_url=database_url, max_body_bytes=largest))
    let_go = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        yield b" " * largest
        await let_go.wait()

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        others = [asyncio.create_task(client.post("/plan/infer", content=held(), headers=JSON)) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await client.post("/plan/infer", content=b" " * largest, headers=JSON)
        assert (refused.status_code, refused.json()["code"]) == (503, "try-later")
        assert refused.headers["retry-after"] == "1"
        let_go.set()
        assert [answer.status_code for answer in await asyncio.gather(*others)] == [400, 400]


async def test_a_client_that_leaves_within_its_body_is_no_error_of_the_service(database_url: str):
    app = create_app(Settings(database_url=database_url))
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def keep(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    scope = {"type": "http", "method": "POST", "path": "/plan/infer", "query_string": b"", "headers": headers,
             "client": ("127.0.0.1", 1)}  # fmt: skip
    async with app.router.lifespan_context(app):
        await app(scope, receive, keep)
    assert sent[0]["status"] == 400
