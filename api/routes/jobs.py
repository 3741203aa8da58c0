"""`POST /quantize` and `/jobs`: work that a worker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import TypeAdapter
from starlette.responses import PlainTextResponse, Response

from plimsoll.api import examples
from plimsoll.api.auth.callers import Asking
from plimsoll.api.bodies import JOB, job_body
from plimsoll.api.idempotency import LOCATION, REPLAYED, IdempotencyKey, queued_headers
from plimsoll.api.negotiation import WantsText
from plimsoll.api.paging import Cursor, Limit
from plimsoll.api.problems import problem_responses
from plimsoll.api.routes.planning import TEXT
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.planners.quantization.planning import QuantizationEstimate
from plimsoll.service.jobs.answers import JobBody, JobPage, QuantizeBody
from plimsoll.service.persistence.records import Job, JobKind, JobState
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.text.answers import job_text, jobs_text

router = APIRouter(tags=["job"], route_class=StrictRoute)

JobId = Annotated[str, Path(max_length=100, examples=["0f8fad5b-d9cb-469f-a165-70867728950e"])]
ESTIMATE: TypeAdapter[QuantizationEstimate] = TypeAdapter(QuantizationEstimate)
MOST_EVENTS = 2**63 - 1


@router.post(
    "/quantize",
    status_code=HTTPStatus.ACCEPTED,
    summary="Estimate a quantization at once, and queue it on a worker",
    response_model=QuantizeBody,
    responses={
        **problem_responses(400, 403, 413, 415, 422, 500, 501, 502, 503, 504),
        202: {"description": "The estimate, and the queued job.", "headers": LOCATION | REPLAYED},
    },
)
async def quantize(
    services: Running,
    caller: Asking,
    response: Response,
    request: Annotated[QuantizeRequest, Body(openapi_examples=examples.QUANTIZE)],
    idempotency_key: IdempotencyKey = None,
) -> QuantizeBody:
    """The estimate is exact in bytes; the job measures the error, the time and the memory it takes."""
    model, estimate = await asyncio.to_thread(services.quantization.estimated, request)
    queued = await services.quantization.queue(
        request,
        model,
        estimate,
        estimate_json=ESTIMATE.dump_python(estimate, mode="json"),
        key_id=caller.key_id,
        route="POST /quantize",
        asked_by=caller.name,
        idempotency_key=idempotency_key,
    )
    response.headers.update(queued_headers(queued.job))
    return QuantizeBody(estimate=queued.estimate, job=job_body(queued.job))


@router.get(
    "/jobs",
    summary="List jobs, newest first",
    response_model=JobPage,
    responses={**problem_responses(400, 422, 500, 503), 200: {"content": TEXT}},
)
async def list_jobs(
    services: Running,
    caller: Asking,
    text: WantsText,
    kind: JobKind | None = None,
    state: JobState | None = None,
    plan_id: str | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage | PlainTextResponse:
    """Filter by any of kind, state and plan."""
    page = await services.jobs.page(
        kind=kind, state=state, plan_id=plan_id, key_id=caller.sees_only, limit=limit, cursor=cursor
    )
    if text:
        return PlainTextResponse(jobs_text(page))
    return JobPage(items=tuple(job_body(job) for job in page.items), next_cursor=page.next_cursor)


@router.get(
    "/jobs/{job_id}",
    summary="Return a job as it stands",
    response_model=JobBody,
    responses={**problem_responses(400, 404, 422, 500, 503), 200: {"content": TEXT}},
)
async def get_job(services: Running, caller: Asking, text: WantsText, job_id: JobId) -> JobBody | PlainTextResponse:
    """The result stands under `result` once the state is `succeeded`, the reason under `error` once it is `failed`."""
    job = job_body(await services.jobs.get(job_id, key_id=caller.sees_only), with_estimate=True)
    return PlainTextResponse(job_text(_as_json(job))) if text else job


@router.post(
    "/jobs/{job_id}/cancel",
    summary="Cancel a job",
    response_model=JobBody,
    responses=problem_responses(400, 404, 422, 500, 503),
)
async def cancel_job(services: Running, caller: Asking, job_id: JobId) -> JobBody:
    """A waiting job is cancelled at once, a running one within seconds; a finished one stays as it is."""
    return job_body(await services.jobs.cancel(job_id, key_id=caller.sees_only))


async def _existing(services: Running, caller: Asking, job_id: JobId) -> Job:
    # Before the stream begins: after that there is no status left to answer with.
    return await services.jobs.to_follow(job_id, key_id=caller.sees_only)


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job: state changes, progress, the result",
    response_class=EventSourceResponse,
    responses={
        **problem_responses(400, 404, 422, 500, 503),
        200: {"description": "Server-sent events `state`, `progress` and `result`, until the job is finished."},
    },
)
async def follow_job(
    services: Running,
    job: Annotated[Job, Depends(_existing)],
    last_event_id: Annotated[
        int, Header(ge=0, le=MOST_EVENTS, description="The id of the last event that was seen.")
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Each event's data is a JSON object. Reconnecting with `Last-Event-ID` misses nothing."""
    async for event in services.jobs.events(job, last_event_id):
        yield ServerSentEvent(data=dict(event.data), event=event.kind, id=str(event.id))


def _as_json(job: JobBody) -> dict[str, Any]:
    shown: dict[str, Any] = JOB.dump_python(job, mode="json")
    return shown
