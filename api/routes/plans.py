"""`/plans`: what was planned, and what follows from it."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from plimsoll.api import examples
from plimsoll.api.auth.callers import Asking
from plimsoll.api.bodies import job_body
from plimsoll.api.idempotency import LOCATION, REPLAYED, IdempotencyKey, queued_headers
from plimsoll.api.negotiation import WantsText
from plimsoll.api.paging import Cursor, Limit
from plimsoll.api.problems import problem_responses
from plimsoll.api.routes.planning import TEXT, planned_response
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.service.artifacts.saved_files import file_name, file_text
from plimsoll.service.jobs.answers import JobBody
from plimsoll.service.jobs.validations import DeviceWish
from plimsoll.service.launch.kubernetes import in_queue
from plimsoll.service.persistence.records import PlanFilter, PlanKind
from plimsoll.service.plans.answers import InferPlanBody, PlanPage, PlanQuestion, TrainPlanBody
from plimsoll.service.requests.jobs import ValidateRequest
from plimsoll.service.text.answers import plans_text

router = APIRouter(prefix="/plans", tags=["plan"], route_class=StrictRoute)

PlanId = Annotated[str, Path(max_length=100, examples=["0123456789abcdef0123456789abcdef01234567"])]
Filter = Annotated[str | None, Query(max_length=200)]


@router.get(
    "",
    summary="List stored plans, newest first",
    response_model=PlanPage,
    responses={**problem_responses(400, 422, 500, 503), 200: {"content": TEXT}},
)
async def list_plans(
    services: Running,
    caller: Asking,
    text: WantsText,
    kind: PlanKind | None = None,
    model: Filter = None,
    gpu: Filter = None,
    fits: bool | None = None,
    verdict: Literal["fits", "tight", "no"] | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> PlanPage | PlainTextResponse:
    """Filter by any of kind, model, GPU (each by id or alias), `fits` and `verdict`."""
    wanted = PlanFilter(kind=kind, model=model, gpu=gpu, fits=fits, verdict=verdict, reader=caller.sees_only)
    page = await services.planning.page(wanted, limit=limit, cursor=cursor)
    if text:
        return PlainTextResponse(plans_text(page))
    return PlanPage(items=page.items, next_cursor=page.next_cursor)


@router.get(
    "/{plan_id}",
    summary="Return a stored plan as it was answered",
    response_model=TrainPlanBody | InferPlanBody,
    responses={**problem_responses(400, 404, 422, 500, 503), 200: {"content": TEXT}},
)
async def get_plan(services: Running, caller: Asking, text: WantsText, plan_id: PlanId) -> Response:
    """The body is the one that was answered first, byte for byte; fields that came later are null or empty in it."""
    await services.plan_readers.check(caller, plan_id)
    return planned_response(services, await services.planning.plan(plan_id), text=text)


@router.get(
    "/{plan_id}/question",
    summary="Return what a stored plan answers",
    response_model=PlanQuestion,
    responses=problem_responses(400, 404, 422, 500, 503),
)
async def get_question(services: Running, caller: Asking, plan_id: PlanId) -> PlanQuestion:
    """Every default, the model's config and the GPU's figures stand in it; what is null was left to the planner."""
    await services.plan_readers.check(caller, plan_id)
    return await services.planning.question(plan_id)


@router.get(
    "/{plan_id}/artifacts/{name}",
    summary="Return one launch file of a plan",
    response_model=None,
    responses={
        **problem_responses(400, 404, 422, 500, 503),
        200: {
            "description": "The file: text, or JSON where the program reads JSON.",
            "content": {**TEXT, "application/json": {"schema": {"type": "object"}}},
        },
    },
)
async def get_artifact(
    services: Running,
    caller: Asking,
    plan_id: PlanId,
    name: Annotated[str, Path(max_length=100)],
    queue: Annotated[
        str | None,
        Query(
            max_length=63,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            description="The Kueue queue a workload waits in.",
        ),
    ] = None,
) -> Response:
    """The names are those under the plan's `artifacts`; `Content-Disposition` says what the file is to be called."""
    await services.plan_readers.check(caller, plan_id)
    answer = await services.planning.plan(plan_id)
    artifacts: dict[str, Any] = json.loads(answer.body)["artifacts"]
    if name not in artifacts:
        listed = ", ".join(artifacts) or "none"
        raise HTTPException(HTTPStatus.NOT_FOUND, f"The plan has no artifact {name!r}; it has {listed}.")
    content = artifacts[name]
    if queue is not None:
        content = in_queue(content, queue) if isinstance(content, str) else None
        if content is None:
            raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name!r} is no manifest, and waits in no queue.")
    headers = {"content-disposition": f'inline; filename="{file_name(name, content)}"'}
    media_type = "text/plain" if isinstance(content, str) else "application/json"
    return Response(file_text(content), media_type=media_type, headers=headers)


@router.post(
    "/{plan_id}/validate",
    status_code=HTTPStatus.ACCEPTED,
    summary="Queue a proof of a stored plan",
    response_model=JobBody,
    responses={
        **problem_responses(400, 404, 413, 415, 422, 500, 501, 503),
        202: {"description": "The queued job.", "headers": LOCATION | REPLAYED},
    },
)
async def validate_plan(
    services: Running,
    caller: Asking,
    response: Response,
    plan_id: PlanId,
    request: Annotated[ValidateRequest, Body(openapi_examples=examples.VALIDATE)],
    idempotency_key: IdempotencyKey = None,
) -> JobBody:
    """`count` compares the weights, `trace` runs one rank's step on fake tensors, `device` runs it for real.

    Of a serving plan `trace` and `device` load the weights, allocate the cache, and run a prefill and a decode step.
    """
    await services.plan_readers.check(caller, plan_id)
    job = await services.validation.queue(
        plan_id,
        request.level,
        where=DeviceWish(on=request.device, any_gpu_kind=request.any_gpu_kind),
        key_id=caller.key_id,
        route="POST /plans/{plan_id}/validate",
        asked_by=caller.name,
        idempotency_key=idempotency_key,
    )
    response.headers.update(queued_headers(job))
    return job_body(job)
