"""What both clients do with a call before it is sent and with what comes back."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from plimsoll.client.calls import Call
from plimsoll.client.errors import ClientError, UnexpectedAnswer, Unreachable, refusal
from plimsoll.client.retries import retry_after_seconds
from plimsoll.service.ground.problems import MEDIA_TYPE, Problem

Value = TypeVar("Value")
QUOTED_CHARACTERS = 200
"""Of an answer that is not this service's."""


def settings_of(url: str, *, key: str | None, timeout_seconds: float, transport: Any) -> dict[str, Any]:
    """Return what an httpx client is made with; proxies and netrc of the environment are not for this service."""
    headers = {"accept": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return {
        "base_url": url,
        "headers": headers,
        "timeout": timeout_seconds,
        "trust_env": False,
        "transport": transport,
    }


def request_of(call: Call[Any]) -> dict[str, Any]:
    """Return a call as arguments of httpx's `request`."""
    headers = {} if call.idempotency_key is None else {"idempotency-key": call.idempotency_key}
    body = {} if call.body is None else {"json": call.body}
    return {"method": call.method, "url": call.path, "params": call.query, "headers": headers, **body}


def body_of(response: httpx.Response) -> Any:
    """Return the body of an answer: JSON values, or text; raises Refused and UnexpectedAnswer."""
    if response.is_success:
        is_json = _media_type(response) == "application/json"
        try:
            return response.json() if is_json else response.text
        except ValueError as error:
            raise UnexpectedAnswer(f"{response.url} answered with something that is not JSON.") from error
    raise _problem_of(response)


def value_of(call: Call[Value], body: Any) -> Value:
    """Return an answer as its type; raises UnexpectedAnswer."""
    try:
        return call.value(body)
    except ValidationError as error:
        raise UnexpectedAnswer(f"{call.path} answered with something else than was expected: {error}") from error


def unreachable(url: str, error: httpx.TransportError) -> ClientError:
    """Return the error of a connection that brought no answer."""
    return Unreachable(f"No service answers on {url} ({str(error) or type(error).__name__}).")


def _problem_of(response: httpx.Response) -> ClientError:
    quoted = f"{response.url} answered {response.status_code}: {response.text[:QUOTED_CHARACTERS]}"
    if _media_type(response) != MEDIA_TYPE:
        return UnexpectedAnswer(quoted)
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return UnexpectedAnswer(quoted)
    return refusal(problem, retry_after_seconds=retry_after_seconds(response.headers.get("retry-after")))


def _media_type(response: httpx.Response) -> str:
    media_type: str = response.headers.get("content-type", "")
    return media_type.partition(";")[0].strip().lower()
