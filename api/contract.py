"""The contract, as the framework writes it and then as OpenAPI 3.1 and its linters want it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.sse import EventSourceResponse

from plimsoll.api.auth.contract import describe_keys
from plimsoll.api.problems import problem_responses
from plimsoll.service.ground.problems import Problem

TITLE = "Plimsoll"
EVENTS_PATH = "/jobs/{job_id}/events"
DESCRIPTION = (
    "Plans LLM training jobs, sizes inference KV caches, and proves its plans. Quantities are SI or bytes and carry "
    "their unit in their name. Unknown request fields are refused. Every error is a problem document (RFC 9457). "
    "HEAD is answered wherever GET is."
)
# Wherever the document was fetched from is where the service is.
SERVERS = [{"url": "/", "description": "The service that gives out this document."}]
# Linters want both; the repository names no licence, and every installation is run by somebody else.
CONTACT = {"name": "Whoever runs this service"}
LICENCE = {"name": "No licence has been granted", "identifier": "LicenseRef-none-granted"}
TAGS = {
    "plan": "Training jobs and serving deployments: planned, stored, proved, launched.",
    "job": "Work that a worker does: proofs and quantizations.",
    "catalogue": "What requests may name: models, GPUs, clusters and number formats.",
    "accuracy": "What was measured, beside what was predicted.",
    "admission": "The webhook that a Kubernetes API server asks.",
    "health": "For those who run the service.",
    "pages": "For people with a browser.",
}


def contract_of(app: FastAPI) -> dict[str, Any]:
    """Return the application's contract, made once."""
    if app.openapi_schema is None:
        contract = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            servers=SERVERS,
            contact=CONTACT,
            license_info=LICENCE,
            tags=[{"name": name, "description": description} for name, description in TAGS.items()],
        )
        _add_problems(contract)
        # FastAPI describes the single event, which only OpenAPI 3.2 can; this is a 3.1 document.
        contract["paths"][EVENTS_PATH]["get"]["responses"]["200"]["content"] = {
            EventSourceResponse.media_type: {"schema": {"type": "string"}}
        }
        describe_keys(contract)
        for operation in _operations(contract):
            # Said of the others, too: that they need no key.
            operation.setdefault("security", [])
        for schema in _objects(contract["components"]):
            _close_tuple(schema)
        app.openapi_schema = contract
    return app.openapi_schema


def _add_problems(contract: dict[str, Any]) -> None:
    """Add the schema of problem documents, which routes declare by reference."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = contract.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    for operation in _operations(contract):
        # Whatever is asked, the answer may take too long.
        operation["responses"].setdefault("504", problem_responses(504)[504])


def _operations(contract: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (operation for path in contract["paths"].values() for operation in path.values())


def _close_tuple(schema: dict[str, Any]) -> None:
    """Write a tuple of one type as an array of it, which every generator of clients reads."""
    kinds = schema.get("prefixItems")
    if isinstance(kinds, list) and all(kind == kinds[0] for kind in kinds):
        del schema["prefixItems"]
        schema["items"] = kinds[0]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _objects(each)
