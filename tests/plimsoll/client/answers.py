"""A transport that gives prepared answers, and what was asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

Answer = httpx.Response | httpx.TransportError


def problem(status: int, **more: Any) -> httpx.Response:
    """Return a problem document as the service sends one."""
    headers = {"content-type": "application/problem+json", **more.pop("headers", {})}
    body = {"type": "urn:plimsoll:problem:x", "title": "x", "status": status, "detail": "No.", "code": "x", **more}
    return httpx.Response(status, headers=headers, content=json.dumps(body).encode())


def answering(*answers: Answer) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """Return a transport that gives the answers one after the other, the last one ever after."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(request)
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    return httpx.MockTransport(handle), asked


def waits() -> tuple[list[float], Callable[[float], None]]:
    """Return a list and a sleep that only notes in it how long it would have been."""
    slept: list[float] = []
    return slept, slept.append
