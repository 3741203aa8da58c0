"""Problem documents as responses, and as routes declare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from plimsoll.service.ground.problems import MEDIA_TYPE, Problem, ProblemField
from plimsoll.service.requests.pointers import FieldError

SCHEMA_REFERENCE = {"$ref": "#/components/schemas/Problem"}


class ProblemResponse(Response):
    """A problem document as a response."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        problem = Problem(
            type=f"urn:plimsoll:problem:{code}",
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            code=code,
            errors=[ProblemField(pointer=error.pointer, detail=error.detail) for error in errors],
            **(more or {}),
        )
        super().__init__(problem.model_dump_json(), status_code=status, headers=headers)


MEANINGS = {
    400: "The body is not JSON, or not text.",
    401: "No API key came with the request, or none that is in force.",
    403: "The API key lacks the scope, or a path lies outside every allowed folder.",
    404: "There is no such thing.",
    405: "The path has no such method; `Allow` names those it has.",
    409: "The state does not allow it.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "A value makes no sense; `errors` points at it.",
    429: "Too many requests, wrong keys, searches, streams or jobs; `Retry-After` says when there is room.",
    500: "The service is at fault.",
    501: "This version does not answer that yet.",
    502: "The hub mirror cannot be reached, or answers with something that is no config.",
    503: "The database or the queue cannot take it now.",
    504: "No answer was found in time.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what a route declares in OpenAPI for the problems it may answer with."""
    return {
        status: {"description": MEANINGS[status], "content": {MEDIA_TYPE: {"schema": SCHEMA_REFERENCE}}}
        for status in statuses
    }
