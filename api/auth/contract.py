"""What the contract says of keys: the scheme, which route needs which scope, and the refusals."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from plimsoll.api.auth.rules import need_of
from plimsoll.api.problems import problem_responses

SCHEME = "apiKey"
_DESCRIPTION = (
    "An API key, made with `plimsoll keys create`. Not needed where the service listens on its own machine alone, or "
    "where it is set to answer anyone."
)
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


def describe_keys(contract: dict[str, Any]) -> None:
    """Add the scheme, and to each operation that may ask for a key its need and its refusals."""
    schemes = contract["components"].setdefault("securitySchemes", {})
    schemes[SCHEME] = {"type": "http", "scheme": "bearer", "description": _DESCRIPTION}
    for path, operations in contract["paths"].items():
        for method, operation in operations.items():
            need = need_of(method.upper(), path)
            # Any request may be told to come back later, or that the key it shows is none.
            if need == "nothing":
                continue
            operation["security"] = [{SCHEME: [] if need == "any-key" else [need]}, {}]
            for status, answer in problem_responses(*_REFUSALS).items():
                operation["responses"].setdefault(str(int(status)), answer)
            operation["responses"] = dict(sorted(operation["responses"].items()))
