"""The contract: checked in, valid, and kept by the application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from openapi_spec_validator import validate

from plimsoll.api.app import create_app
from plimsoll.api.openapi import OPENAPI_FILE, openapi_yaml
from plimsoll.service.ground.settings import Settings
from tests.api.questions import train

CONTRACT: dict[str, Any] = create_app(Settings()).openapi()

# The wire contract's routes; none may go missing.
ROUTES = {
    "POST /plan/train",
    "POST /plan/infer",
    "POST /quantize",
    "POST /plans/{plan_id}/validate",
    "GET /plans",
    "GET /plans/{plan_id}",
    "GET /plans/{plan_id}/question",
    "GET /jobs",
    "GET /jobs/{job_id}",
    "POST /jobs/{job_id}/cancel",
    "GET /jobs/{job_id}/events",
    "GET /models",
    "GET /models/{id}",
    "GET /hardware",
    "GET /hardware/{id}",
    "POST /models/describe",
    "GET /plans/{plan_id}/artifacts/{name}",
    "GET /formats",
    "PUT /hardware/{id}/calibration",
    "GET /hardware/{id}/calibration",
    "DELETE /hardware/{id}/calibration",
    "POST /admission/validate",
    "GET /accuracy",
    "POST /measurements",
    "DELETE /measurements/{measurement_id}",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /",
    "GET /ui",
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in CONTRACT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def examples() -> Iterator[Any]:
    for method, path, operation in operations():
        for media in operation.get("requestBody", {}).get("content", {}).values():
            for name, example in media.get("examples", {}).items():
                yield pytest.param(method, path, example["value"], id=f"{path}: {name}")


def test_the_file_is_current():
    assert OPENAPI_FILE.read_text(encoding="utf-8") == openapi_yaml(), "run `make openapi`"


def test_the_file_is_valid_openapi():
    validate(yaml.safe_load(OPENAPI_FILE.read_text(encoding="utf-8")))


def test_every_route_is_there():
    assert {f"{method} {path.replace(':path', '')}" for method, path, _ in operations()} == ROUTES


@pytest.mark.parametrize(("method", "path", "operation"), list(operations()))
def test_every_route_has_a_summary_and_declares_its_problems(method: str, path: str, operation: dict[str, Any]):
    assert operation["summary"]
    problems = {status: answer for status, answer in operation["responses"].items() if status[0] in "45"}
    assert "500" in problems
    for status, answer in problems.items():
        if status != "409":
            assert list(answer["content"]) == ["application/problem+json"]


@pytest.mark.parametrize(("method", "path", "body"), list(examples()))
async def test_every_example_is_answered(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]):
    if "{plan_id}" in path:
        plan = await client.post("/plan/train", json=train(framework="fsdp2"))
        path = path.replace("{plan_id}", plan.json()["plan_id"])
    path = path.replace("/hardware/{id}", "/hardware/h100")
    response = await client.request(method, path, json=body)
    assert response.status_code < 300, response.text


def test_the_app_of_the_tests_has_the_same_contract(app: FastAPI):
    assert app.openapi() == CONTRACT


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of the contract."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from schemas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schemas(inner)


def test_bounds_are_in_json_schemas_words():
    # Pydantic's own are ge, gt, le and lt, which no generator of clients reads.
    assert [found for found in schemas(CONTRACT) if {"ge", "gt", "le", "lt"} & set(found)] == []
    optional = CONTRACT["components"]["schemas"]["LayoutPart"]["properties"]["tensor_parallel"]["anyOf"]
    assert optional == [{"type": "integer", "minimum": 1, "maximum": 1_000_000}, {"type": "null"}]


def test_every_operation_says_which_key_it_needs():
    keyless = {path for _, path, operation in operations() if operation["security"] == []}
    assert keyless == {"/", "/ui", "/healthz", "/readyz"}


def test_tuples_of_one_type_are_arrays_of_it():
    layers = CONTRACT["components"]["schemas"]["StageMemory"]["properties"]["layers"]
    kept = {name: layers[name] for name in ("type", "items", "minItems", "maxItems")}
    assert kept == {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def test_every_tag_of_an_operation_is_described():
    described = {tag["name"] for tag in CONTRACT["tags"]}
    assert {tag for _, _, operation in operations() for tag in operation["tags"]} == described
