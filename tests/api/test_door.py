"""What every answer carries, and what the log is told of a request."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import structlog

from plimsoll.api.app import create_app
from plimsoll.api.door import Door, _joined
from plimsoll.api.metrics import Metrics
from plimsoll.service.ground.database_address import libpq_url
from plimsoll.service.ground.settings import Settings


def door_to(app: Any, **settings: Any) -> Door:
    return Door(app, settings=Settings(**settings), metrics=Metrics(), search_paths=frozenset())


def asked(method: str = "GET", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    """Return the scope of a request that anyone may send."""
    return {"type": "http", "method": method, "path": "/healthz", "query_string": b"", "headers": list(headers)}


async def sent_through(door: Door, scope: dict[str, Any]) -> list[Any]:
    sent: list[Any] = []

    async def keep(message: Any) -> None:
        sent.append(message)

    await door(scope, None, keep)  # type: ignore[arg-type]
    return sent


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


async def test_a_page_says_itself_what_it_may_load_and_for_how_long_it_is_kept(tmp_path: Path):
    own = [(b"content-type", b"text/html"), (b"cache-control", b"max-age=60")]

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": own})
        await send({"type": "http.response.body", "body": b""})

    files = {name: tmp_path / name for name in ("tls_certificate_file", "tls_key_file")}
    sent = await sent_through(door_to(page, **files), asked())
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


async def sent_in_time(app: App, most_seconds: float) -> list[Any]:
    half = most_seconds / 2
    return await sent_through(door_to(app, body_timeout_seconds=half, request_timeout_seconds=half), asked())


async def test_an_answer_that_does_not_begin_in_time_is_given_up_and_its_work_cancelled():
    app = App(before_seconds=3600)
    sent = await sent_in_time(app, most_seconds=0.02)
    assert (sent[0]["status"], json.loads(sent[1]["body"])["code"]) == (504, "request-timed-out")
    assert app.was_cancelled


async def test_an_answer_that_has_begun_may_take_its_time():
    sent = await sent_in_time(App(before_seconds=0, after_seconds=0.05), most_seconds=0.02)
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"done")


async def test_a_time_out_of_the_apps_own_is_not_taken_for_the_limit():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await sent_through(door_to(app), asked())


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

    await sent_through(door_to(app), asked("GET", (b"x-request-id", b"abc-1")))
    assert bound == {"request_id": "abc-1"}
    assert structlog.contextvars.get_contextvars() == {}


async def test_headers_that_are_given_twice_are_read_as_one_list():
    assert _joined([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]) == {b"a": b"1, 3", b"b": b"2"}


async def test_an_answer_in_parts_is_compressed_part_by_part_and_has_no_tag():
    parts = [b"one " * 500, b"two " * 500]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/csv")]})
        for number, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": number == 0})

    head, *sent = await sent_through(door_to(app), asked("GET", (b"accept-encoding", b"gzip")))
    headers = dict(head["headers"])
    assert (headers[b"content-encoding"], headers[b"vary"]) == (b"gzip", b"Accept-Encoding")
    assert b"etag" not in headers
    unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS)
    # Each can be read before the next has come.
    assert [unpacked.decompress(message["body"]) for message in sent] == parts
    assert unpacked.eof
    (_, *plain) = await sent_through(door_to(app), asked())
    assert [message["body"] for message in plain] == parts


async def test_events_begin_before_there_is_one():
    began = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await asyncio.wait_for(began.wait(), timeout=5)
        await send({"type": "http.response.body", "body": b"data: 1", "more_body": False})

    async def note(message: Any) -> None:
        if message["type"] == "http.response.start":
            began.set()

    await door_to(app)(asked(), None, note)  # type: ignore[arg-type]
    assert began.is_set()
