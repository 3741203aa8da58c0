"""Bodies read strictly: JSON as its standard has it, and no parameter that nobody reads."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from typing import Any

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from plimsoll.api.flat_dependencies import flattened
from plimsoll.planners.ground.errors import nearest_names
from plimsoll.service.requests.pointers import FieldError, escaped_step

MOST_JSON_ENTRIES = 100_000
"""Of lists and objects together; the longest model configurations and workloads hold a few thousand."""
MOST_MEMBERS = 1_000
"""Of one object outside a model's config. Each may be an unknown field, at some 30 us apiece, and nobody else is
answered meanwhile; no request has a hundred."""

MODEL_CONFIG = ("model", "config")


class StrictJsonRequest(Request):
    """A request whose body must be UTF-8 JSON without NaN, infinities, repeated names or unstorable text."""

    async def json(self) -> Any:
        """Return the body's value; raises MalformedBody."""
        if not hasattr(self, "_json"):
            self._json = strict_json(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route that refuses bodies that are not declared JSON and query parameters that it does not know."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, flattened(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the two checks."""
        handle = super().get_route_handler()
        known = frozenset(field.alias for field in get_flat_params(self.dependant) if _is_query(field))
        takes_body = self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request, known)
            if not takes_body:
                return await handle(request)
            _check_content_type(request)
            strict = StrictJsonRequest(request.scope, request.receive)
            # Read here: the framework takes whatever goes wrong with it for the client's mistake.
            try:
                await strict.body()
            except ClientDisconnect as error:
                raise HTTPException(HTTPStatus.BAD_REQUEST, "The body ended before it was whole.") from error
            return await handle(strict)

        return handle_strictly


class MalformedBody(HTTPException):
    """The body is not the JSON that it says it is; `errors` point at where it is not."""

    def __init__(self, detail: str, *, pointer: str = "") -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, detail)
        self.errors = (FieldError(pointer=pointer, detail=detail),)


def strict_json(body: bytes) -> Any:
    """Return the value of a JSON text; raises MalformedBody with the reason."""
    is_finite = True

    def constant(name: str) -> float:
        nonlocal is_finite
        is_finite = False
        return float(name)

    def number(text: str) -> float:
        nonlocal is_finite
        value = float(text)
        is_finite = is_finite and math.isfinite(value)
        return value

    try:
        value = json.loads(body.decode(), parse_constant=constant, parse_float=number, object_pairs_hook=_named_once)
        # Texts hold commas too: only where there are very many is it worth while to look.
        if body.count(b",") + body.count(b"[") + body.count(b"{") > MOST_MEMBERS:
            _check_entries(value)
        if not is_finite:
            _check_finite(value)
        if b"\\u" in body:
            _check_text(value)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"The body is not UTF-8 at byte {error.start}.") from error
    except UnicodeEncodeError as error:
        raise MalformedBody("A text holds half of a surrogate pair.") from error
    except RecursionError as error:
        raise MalformedBody("The body is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise MalformedBody(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except ValueError as error:
        raise MalformedBody(f"The body is not JSON that can be read: {_unread(error)}.") from error
    return value


def _unread(error: ValueError) -> str:
    """Return why a body was not read; of a number too long Python says how a program would read it."""
    if str(error).startswith("Exceeds the limit"):
        return f"a whole number has more than {sys.get_int_max_str_digits():,} digits"
    return str(error)[:200]


def _check_finite(value: Any) -> None:
    """Raise at the first number that is none, or that is too large to be held, outside a model's config.

    transformers wrote such numbers into `config.json` for years.
    """
    detail = "NaN, infinities and numbers beyond 1.8e308 are refused."
    if isinstance(value, float) and not math.isfinite(value):
        raise MalformedBody(detail)
    steps: list[int | str] = []
    levels = [_members(value)]
    while levels:
        for step, item in levels[-1]:
            if isinstance(item, float) and not math.isfinite(item):
                raise MalformedBody(detail, pointer="".join(f"/{escaped_step(part)}" for part in (*steps, step)))
            if isinstance(item, dict | list) and (*steps[-1:], step) != MODEL_CONFIG:
                steps.append(step)
                levels.append(_members(item))
                break
        else:
            levels.pop()
            del steps[-1:]


def _check_entries(value: Any) -> None:
    """Raise where there are more entries than are read, or one object has more than any request."""
    entries = 0
    # Each with the way to it, that of a config ending there.
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while waiting:
        steps, place = waiting.pop()
        inner = tuple(_members(place))
        entries += len(inner)
        is_config = steps[-2:] == MODEL_CONFIG
        if isinstance(place, dict) and len(inner) > MOST_MEMBERS and not is_config:
            pointer = "".join(f"/{escaped_step(step)}" for step in steps)
            raise MalformedBody(f"An object holds more than {MOST_MEMBERS} members.", pointer=pointer)
        waiting.extend(
            (steps if is_config else (*steps, step), item) for step, item in inner if isinstance(item, dict | list)
        )
    if entries > MOST_JSON_ENTRIES:
        raise MalformedBody(f"The body holds more than {MOST_JSON_ENTRIES} entries.")


def _members(value: Any) -> Iterator[tuple[int | str, Any]]:
    return iter(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name[:100]!r} is given twice")
            seen.add(name)
    return value


def _check_text(value: Any) -> None:
    """Raise where an escape made a text that is no text, or that no database stores."""
    if "\\u0000" in json.dumps(value, ensure_ascii=False):
        raise ValueError("a text holds a NUL character")
    json.dumps(value, ensure_ascii=False).encode()


def _is_query(field: Any) -> bool:
    return getattr(field.field_info, "in_", None) is not None and field.field_info.in_.value == "query"


def _check_content_type(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body is declared as compressed with {encoding[:100]!r}; send it plain, without 'content-encoding'.",
        )
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json" and not (declared.startswith("application/") and declared.endswith("+json")):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body is declared as {declared[:100]!r}; send it with 'content-type: application/json'."
            if declared
            else "The body has no content type; send it with 'content-type: application/json'.",
        )


def _check_query(request: Request, known: frozenset[str]) -> None:
    unknown = sorted(set(request.query_params) - known)
    names = [name for name, _ in request.query_params.multi_items()]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestValidationError([{"type": "repeated", "loc": ("query", twice[:100]), "msg": "is given twice"}])
    if unknown:
        raise RequestValidationError(
            [
                {"type": "extra_forbidden", "loc": ("query", name[:100]), "msg": _unknown_parameter(name, known)}
                for name in unknown
            ]
        )


def _unknown_parameter(name: str, known: frozenset[str]) -> str:
    """Return what to say of a parameter that nobody reads: which was meant, or which there are."""
    if not known:
        return "is not a parameter here; there are none"
    meant = nearest_names(name, sorted(known), most=2)
    return (
        f"is not a parameter here; did you mean {' or '.join(meant)}?"
        if meant
        else (f"is not a parameter here; the parameters are {', '.join(sorted(known))}")
    )
