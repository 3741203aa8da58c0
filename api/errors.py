"""Which status each error has: one table, and the handlers that apply it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from plimsoll.api.problems import MEANINGS, ProblemResponse
from plimsoll.api.strict_json import MalformedBody
from plimsoll.planners.ground.errors import (
    ImpossibleLayout,
    PlimsollError,
    UnknownModelType,
    UnknownName,
    nearest_names,
)
from plimsoll.service.ground.errors import TryLater, Unauthenticated
from plimsoll.service.requests.pointers import FieldError, field_errors, field_name, parameter_error

STATUS_OF_CODE: Mapping[str, int] = {
    "calibration-not-found": 404,
    "measurement-not-found": 404,
    "database-unavailable": 503,
    "hub-model-not-found": 422,
    "hub-timed-out": 504,
    "hub-unreachable": 502,
    "idempotency-conflict": 422,
    "impossible-layout": 422,
    "invalid-checkpoint": 422,
    "invalid-cursor": 422,
    "invalid-model-config": 422,
    "invalid-policy": 500,
    "invalid-question": 422,
    "invalid-review": 400,
    "job-not-found": 404,
    "job-quota-reached": 429,
    "key-not-found": 404,
    "no-suitable-device": 422,
    "rank-failed": 500,
    "not-yet-available": 501,
    "overloaded": 503,
    "path-not-allowed": 403,
    "plan-not-found": 404,
    "planning-stopped": 504,
    "planning-timed-out": 504,
    "plimsoll-error": 500,
    "queue-full": 429,
    "rate-limited": 429,
    "scope-missing": 403,
    "search-limit-reached": 429,
    "stream-limit-reached": 429,
    "too-many-wrong-keys": 429,
    "storage-limit-reached": 429,
    "try-later": 503,
    "unauthenticated": 401,
    "unknown-cluster": 422,
    "unknown-version": 422,
    "unknown-gpu": 422,
    "unknown-model": 422,
    "unknown-model-type": 422,
    "unknown-name": 422,
    "unreadable-gpus": 422,
    "unreadable-object": 422,
    "unstorable": 422,
}

CODE_OF_STATUS: Mapping[int, str] = {
    400: "malformed-request",
    404: "not-found",
    405: "method-not-allowed",
    408: "body-too-slow",
    413: "body-too-large",
    415: "unsupported-media-type",
}

# A body may hold tens of thousands of them, and nobody reads on.
MOST_FIELD_ERRORS = 100
MOST_PATH_CHARACTERS = 100

# Where errors of FastAPI's own parameters begin their location.
_PARAMETER_PLACES = ("query", "path", "header", "cookie")


def add_error_handlers(app: FastAPI) -> None:
    """Let every error leave as a problem document."""
    app.add_exception_handler(PlimsollError, _on_plimsoll_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_unforeseen_error)


def problem_of(error: PlimsollError, *, status: int | None = None) -> ProblemResponse:
    """Return the problem document of an error of ours; `status` where the table's does not fit the route."""
    headers = {}
    if isinstance(error, TryLater):
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    more = {"nearest": list(error.nearest)} if isinstance(error, UnknownName) else {}
    if isinstance(error, UnknownModelType):
        more["known"] = list(error.known)
    # Where the route's own path is at fault, there is no body to point into.
    fields = [FieldError(pointer=error.pointer, detail=error.detail)] if error.pointer and status is None else []
    if isinstance(error, ImpossibleLayout):
        fields = [FieldError(pointer=broken.pointer, detail=broken.detail) for broken in error.broken]
    return ProblemResponse(
        status or STATUS_OF_CODE[error.code], error.code, error.detail, errors=fields, headers=headers, more=more
    )


def errors_reference() -> str:
    """Return a table of all codes in Markdown, those of errors by their docstrings; every module must be loaded."""
    meanings = {error.code: (error.__doc__ or "").partition("\n")[0] for error in _loaded_errors()}
    rows = [
        *((code, str(status), meanings[code]) for code, status in STATUS_OF_CODE.items()),
        *((code, str(status), MEANINGS[status]) for status, code in CODE_OF_STATUS.items()),
        ("invalid-request", "422", "A field is missing, unknown or of the wrong kind; `errors` points at each."),
        ("internal-error", "500", "The service failed; its log says why."),
    ]
    lines = [f"| `{code}` | {status} | {meaning} |" for code, status, meaning in sorted(rows)]
    return "\n".join(("| code | status | meaning |", "|---|---|---|", *lines)) + "\n"


def _loaded_errors() -> Iterator[type[PlimsollError]]:
    waiting: list[type[PlimsollError]] = [PlimsollError]
    while waiting:
        error = waiting.pop()
        waiting.extend(error.__subclasses__())
        yield error


async def _on_plimsoll_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, PlimsollError):
        raise error
    return problem_of(error)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    entries = error.errors()
    told = entries[:MOST_FIELD_ERRORS]
    in_body = [_without_place(entry) for entry in told if entry["loc"][0] not in _PARAMETER_PLACES]
    elsewhere = [parameter_error(entry) for entry in told if entry["loc"][0] in _PARAMETER_PLACES]
    fields = (*field_errors(in_body, error.body, _asked_kind(request)), *elsewhere)
    shown = fields[0]
    where = "" if len(told) == len(entries) else f", the first {len(told)} of all"
    rest = f" ({len(entries) - 1} more{where} under 'errors'.)" if len(entries) > 1 else ""
    name = field_name(shown.pointer)
    said = shown.detail.removeprefix(name)
    # In one sentence with the whole pointer, where the detail begins with the field's name.
    whole = f"{shown.pointer or name}{said}" if said != shown.detail else f"{shown.pointer}: {shown.detail}"
    detail = f"{whole}{rest}"
    return ProblemResponse(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=fields)


def _asked_kind(request: Request) -> type[BaseModel] | None:
    """Return the kind of request that the route's body is read as."""
    route = request.scope.get("route")
    body = route.body_field if isinstance(route, APIRoute) else None
    kind = None if body is None else body.field_info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = CODE_OF_STATUS.get(error.status_code, "http-error")
    fields = error.errors if isinstance(error, MalformedBody) else ()
    headers, detail = error.headers, error.detail
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _allowed_methods(request)
        headers = {**(headers or {}), "Allow": allowed}
        detail = f"{request.method} is not answered at {_shown_path(request)}; what is: {allowed}."
    elif error.status_code == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = _nothing_there(request)
    return ProblemResponse(error.status_code, code, detail, errors=fields, headers=headers)


def _nothing_there(request: Request) -> str:
    """Return where the paths are listed, and which of those without parts to fill in were meant."""
    routes: tuple[APIRoute, ...] = request.app.state.routes
    near = nearest_names(
        request.url.path[:MOST_PATH_CHARACTERS], {each.path for each in routes if "{" not in each.path}
    )
    hint = f" Nearest: {', '.join(near)}." if near else ""
    return f"Nothing is at {_shown_path(request)}.{hint} GET /openapi.json lists all paths."


def _shown_path(request: Request) -> str:
    path = request.url.path
    return path if len(path) <= MOST_PATH_CHARACTERS else f"{path[:MOST_PATH_CHARACTERS]}…"


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes at the request's path; the framework names those of the first alone."""
    routes: tuple[APIRoute, ...] = request.app.state.routes
    path = next((route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE), None)
    methods = {method for route in routes if route.path == path for method in route.methods or ()}
    # `api.door` answers them.
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


async def _on_unforeseen_error(_request: Request, _error: Exception) -> Response:
    # The trace goes to the log, where the server writes it, and never to the client.
    return ProblemResponse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", "The service failed; its log says why.")


def _without_place(entry: Mapping[str, object]) -> dict[str, object]:
    location = entry["loc"]
    return {**entry, "loc": location[1:] if isinstance(location, tuple) else ()}
