"""Endpoints take what their dependencies take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.testclient import TestClient
from starlette.requests import Request

from plimsoll.api.flat_dependencies import flattened


async def address(request: Request) -> str:
    return request.url.path


async def doubled(number: Annotated[int, Query(ge=1)] = 1) -> int:
    return 2 * number


async def endpoint(
    path: Annotated[str, Depends(address)], twice: Annotated[int, Depends(doubled)], own: str, other: int = 3
) -> list[object]:
    """Return all that it is given."""
    return [path, twice, own, other]


def client_of(asked: object) -> TestClient:
    app = FastAPI()
    app.get("/here")(asked)  # type: ignore[type-var]
    return TestClient(app)


def test_a_flat_endpoint_answers_as_the_one_that_it_is_made_of():
    whole, flat = client_of(endpoint), client_of(flattened(endpoint))
    for query in ("?own=a", "?own=a&number=4&other=5", "?number=0&own=a", ""):
        answers = [client.get(f"/here{query}") for client in (whole, flat)]
        assert answers[0].status_code == answers[1].status_code
        assert answers[0].json() == answers[1].json()
    assert flat.get("/here?own=a&number=4").json() == ["/here", 8, "a", 3]


def test_the_contract_is_the_same():
    described = [client_of(each).app.openapi() for each in (endpoint, flattened(endpoint))]  # type: ignore[attr-defined]
    assert described[0] == described[1]


def test_an_endpoint_without_dependencies_and_a_stream_stay_what_they_are():
    async def plain(own: str) -> str:
        return own

    async def stream(path: Annotated[str, Depends(address)]) -> AsyncIterator[str]:
        yield path

    assert flattened(plain) is plain
    assert flattened(stream) is stream


def test_two_parameters_of_one_name_are_refused():
    async def twice(number: int, given: Annotated[int, Depends(doubled)]) -> int:
        return number + given

    with pytest.raises(TypeError, match="both have a parameter 'number'"):
        flattened(twice)
