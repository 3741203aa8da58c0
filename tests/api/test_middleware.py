"""What every answer carries, and what the log is told of a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import structlog

from api.middleware import AnswerHeaders


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


async def test_what_is_logged_within_a_request_names_it():
    bound: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bound.update(structlog.contextvars.get_contextvars())

    scope = {"type": "http", "headers": [(b"x-request-id", b"abc-1")]}
    await AnswerHeaders(app, is_https=False)(scope, None, None)  # type: ignore[arg-type]
    assert bound == {"request_id": "abc-1"}
    assert structlog.contextvars.get_contextvars() == {}
