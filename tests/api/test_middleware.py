"""What every answer carries, and what the log is told of a request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import psycopg
import pytest
import structlog

from plimsoll.api.app import create_app
from plimsoll.api.middleware import LARGE_BODY_BYTES, AnswerHeaders, BodyLimit, TimeLimit
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.errors import TryLater
from plimsoll.service.ground.settings import Settings


@pytest.mark.parametrize("path", ["/healthz", "/plans", "/nowhere", "/", "/plans?x=1"])
async def test_every_answer_is_hardened(client: httpx.AsyncClient, path: str):
    headers = (await client.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    # A page is a form without anybody's data: it may be kept, and is asked for anew.
    assert headers["cache-control"] == ("no-cache" if path == "/" else "no-store")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "strict-transport-security" not in headers


async def test_no_other_site_may_read_an_answer(client: httpx.AsyncClient):
    asked = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    for response in (await client.options("/plans", headers=asked), await client.get("/plans", headers=asked)):
        assert not [name for name in response.headers if name.startswith("access-control-")]


async def test_a_page_says_itself_what_it_may_load_and_for_how_long_it_is_kept():
    sent: list[Any] = []
    own = [(b"content-type", b"text/html"), (b"cache-control", b"max-age=60")]

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": own})

    async def keep(message: Any) -> None:
        sent.append(message)

    await AnswerHeaders(page, is_https=True)({"type": "http", "headers": []}, None, keep)  # type: ignore[arg-type]
    names = [name for name, _ in sent[0]["headers"]]
    assert names.count(b"cache-control") == 1
    assert b"content-security-policy" not in names
    assert b"strict-transport-security" in names


class App:
    """Waits, begins to answer, and waits again."""

    def __init__(self, before_seconds: float, after_seconds: float = 0) -> None:
        self._before_seconds, self._after_seconds = before_seconds, after_seconds
        self.was_cancelled = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(self._before_seconds)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(self._after_seconds)
        await send({"type": "http.response.body", "body": b"done"})


async def sent_through(app: App, most_seconds: float) -> list[Any]:
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    await TimeLimit(app, most_seconds=most_seconds)({"type": "http", "headers": []}, None, keep)  # type: ignore[arg-type]
    return sent


async def test_an_answer_that_does_not_begin_in_time_is_given_up_and_its_work_cancelled():
    app = App(before_seconds=3600)
    sent = await sent_through(app, most_seconds=0.01)
    assert (sent[0]["status"], json.loads(sent[1]["body"])["code"]) == (504, "request-timed-out")
    assert app.was_cancelled


async def test_an_answer_that_has_begun_may_take_its_time():
    sent = await sent_through(App(before_seconds=0, after_seconds=0.05), most_seconds=0.01)
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"done")


async def test_a_time_out_of_the_apps_own_is_not_taken_for_the_limit():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await TimeLimit(app, most_seconds=60)({"type": "http", "headers": []}, None, None)  # type: ignore[arg-type]


async def test_a_request_that_waits_for_a_lock_is_answered_and_its_connection_is_free_again(database_url: str):
    settings = Settings(
        database_url=database_url, database_pool_size=1, body_timeout_seconds=1.0, request_timeout_seconds=1.0
    )
    app = create_app(settings)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client,
    ):
        with psycopg.connect(libpq_url(database_url)) as holder:
            holder.execute("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE")
            assert (await client.get("/plans")).status_code == 504
            holder.rollback()
        for _ in range(100):
            if (await client.get("/plans")).status_code == 200:
                return
            await asyncio.sleep(0.2)
        raise AssertionError("The connection did not come back.")


async def test_what_is_logged_within_a_request_names_it():
    bound: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bound.update(structlog.contextvars.get_contextvars())

    scope = {"type": "http", "headers": [(b"x-request-id", b"abc-1")]}
    await AnswerHeaders(app, is_https=False)(scope, None, None)  # type: ignore[arg-type]
    assert bound == {"request_id": "abc-1"}
    assert structlog.contextvars.get_contextvars() == {}


class Reads:
    """Reads a whole body, and holds it until told to let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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
    limit = BodyLimit(app, most_bytes=4 * LARGE_BODY_BYTES, most_seconds=60.0)
    scope: Any = {"type": "http", "headers": []}

    async def unsent(message: Any) -> None:
        raise AssertionError(message)

    # Two of the largest are read at once; beside them no third, but any number of small ones.
    held = [asyncio.create_task(limit(scope, body_of(4 * LARGE_BODY_BYTES), unsent)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TryLater, match="Many large bodies"):
        await limit(scope, body_of(2 * LARGE_BODY_BYTES), unsent)
    small = asyncio.create_task(limit(scope, body_of(LARGE_BODY_BYTES), unsent))
    app.let_go.set()
    await asyncio.gather(*held, small)
    await limit(scope, body_of(4 * LARGE_BODY_BYTES), unsent)
