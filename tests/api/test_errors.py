"""Every error of ours has a status, and every refusal is a problem document."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from plimsoll import planners, service
from plimsoll.api.errors import STATUS_OF_CODE, errors_reference, problem_of
from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError, UnknownModel
from plimsoll.service.ground.errors import QueueFull


def every_error() -> Iterator[type[PlimsollError]]:
    # The worker's modules need torch, and their errors become a job's, never a response.
    for package in (planners, service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("plimsoll.service.worker"):
                importlib.import_module(module.name)
    waiting = [PlimsollError]
    while waiting:
        error = waiting.pop()
        waiting.extend(error.__subclasses__())
        if not error.__module__.startswith(("plimsoll.service.worker", "tests.")):
            yield error


def test_every_error_has_a_status_and_every_status_an_error():
    assert {error.code for error in every_error()} == set(STATUS_OF_CODE)


def test_the_page_of_errors_shows_every_code_as_it_is():
    assert list(every_error())
    page = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
    assert errors_reference() in page.read_text(encoding="utf-8")


def test_no_two_errors_share_a_code():
    errors = list(every_error())
    assert len({error.code for error in errors}) == len(errors)


def test_an_unknown_name_carries_the_nearest():
    response = problem_of(UnknownModel("lama", ["llama", "qwen"], pointer="/model"))
    assert response.status_code == 422
    assert b'"nearest":["llama"]' in response.body
    assert b'"pointer":"/model"' in response.body


def test_a_full_queue_says_when_to_come_back():
    response = problem_of(QueueFull(waiting=10, limit=10, retry_after_seconds=7))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"


def test_an_error_without_a_pointer_points_at_nothing():
    assert b'"errors":[]' in problem_of(InvalidQuestion("no")).body


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("DELETE", "/plan/train", 405), ("GET", "/plans/none", 404), ("GET", "/plans?x=1", 422)],
)
async def test_every_refusal_is_a_problem_document(client: httpx.AsyncClient, method: str, path: str, status: int):
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


async def test_what_nobody_foresaw_is_a_problem_without_a_trace(app: FastAPI, client: httpx.AsyncClient):
    # The route needs the services; without them it fails as only a bug would.
    services, app.state.services = app.state.services, None
    response = await client.get("/hardware")
    app.state.services = services
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    assert "NoneType" not in response.text


async def test_a_method_that_is_not_there_names_all_that_are(client: httpx.AsyncClient):
    response = await client.post("/hardware/h100-sxm-80gb/calibration")
    assert (response.status_code, response.headers["allow"]) == (405, "DELETE, GET, HEAD, PUT")
