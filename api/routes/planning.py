"""`POST /plan/train` and `POST /plan/infer`."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import JSONResponse, PlainTextResponse, Response

from plimsoll.api import examples
from plimsoll.api.auth.callers import Asking
from plimsoll.api.bodies import JOB, job_body
from plimsoll.api.idempotency import REPLAYED, IdempotencyKey, replay_headers
from plimsoll.api.negotiation import WantsText
from plimsoll.api.problems import problem_responses
from plimsoll.api.services import Running, Services
from plimsoll.api.strict_json import StrictRoute
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.persistence.records import Job
from plimsoll.service.plans.answers import InferPlanBody, TrainPlanBody
from plimsoll.service.plans.service import PlannedAnswer
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from plimsoll.service.text.answers import plan_text

router = APIRouter(tags=["plan"], route_class=StrictRoute)

Strict = Annotated[bool, Query(description="Answer 409 with the same body where nothing does what was asked.")]
TEXT = {"text/plain": {"schema": {"type": "string"}}}
_PROBLEMS = problem_responses(400, 403, 413, 415, 422, 500, 501, 502, 503, 504)


@router.post(
    "/plan/train",
    summary="Plan a training job: layout, sharding, memory, step time, run",
    response_model=TrainPlanBody,
    responses={
        **_PROBLEMS,
        200: {"description": "The plan; `fits` says whether it fits.", "content": TEXT, "headers": REPLAYED},
        409: {"description": "With `strict=true`: the plan, which does not fit.", "model": TrainPlanBody},
    },
)
async def plan_train(
    services: Running,
    caller: Asking,
    text: WantsText,
    request: Annotated[TrainRequest, Body(openapi_examples=examples.PLAN_TRAIN)],
    strict: Strict = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Find the best layout for the objective among all that fit, and say what it needs and how long it takes.

    With `validate`, a proof of the plan is queued at once and its job stands under `validation`. Where no worker can
    prove this plan yet, the plan is answered all the same, `validation` is null and `validation_refusal` says why.
    """
    level = request.validation
    if level != "none":
        caller.check("validate")
    answer = await services.planning.plan_train(request, reader=caller.key_id, asked_by=caller.name)
    await services.plan_readers.note(caller, answer.plan_id)
    job: Job | NotYetAvailable | None = None
    if level != "none":
        try:
            job = await services.validation.queue(
                answer.plan_id,
                level,
                key_id=caller.key_id,
                route="POST /plan/train",
                asked_by=caller.name,
                idempotency_key=idempotency_key,
            )
        except NotYetAvailable as refusal:
            # It was the search that chose what cannot be proved, and the plan is worth having without a proof.
            job = refusal
    return planned_response(services, answer, text=text, strict=strict, validation=job)


@router.post(
    "/plan/infer",
    summary="Size a serving deployment: weights, KV cache, concurrency, latency",
    response_model=InferPlanBody,
    responses={
        **_PROBLEMS,
        200: {"description": "The plan; `meets` says whether it does all that was asked.", "content": TEXT},
        409: {
            "description": "With `strict=true`: the plan, which does not fit or misses the load or the service level.",
            "model": InferPlanBody,
        },
    },
)
async def plan_infer(
    services: Running,
    caller: Asking,
    text: WantsText,
    request: Annotated[InferRequest, Body(openapi_examples=examples.PLAN_INFER)],
    strict: Strict = False,
) -> Response:
    """Say how many tokens the cache holds, how many requests at once, and how fast they are answered."""
    answer = await services.planning.plan_infer(request, reader=caller.key_id, asked_by=caller.name)
    await services.plan_readers.note(caller, answer.plan_id)
    return planned_response(services, answer, text=text, strict=strict)


def planned_response(
    services: Services,
    answer: PlannedAnswer,
    *,
    text: bool,
    strict: bool = False,
    validation: Job | NotYetAvailable | None = None,
) -> Response:
    """Return a stored plan's body, byte for byte, or its table."""
    services.metrics.count_plan(answer.kind, answer.verdict)
    status = HTTPStatus.CONFLICT if strict and not _does_what_was_asked(answer) else HTTPStatus.OK
    headers = replay_headers(validation) if isinstance(validation, Job) else {}
    if text:
        table = plan_text(json.loads(answer.body))
        return PlainTextResponse(table + _validation_note(validation), status_code=status, headers=headers)
    if validation is None:
        return Response(answer.body, status_code=status, media_type="application/json")
    body: dict[str, Any] = json.loads(answer.body)
    if isinstance(validation, NotYetAvailable):
        body |= {"validation": None, "validation_refusal": validation.detail}
    else:
        body["validation"] = JOB.dump_python(job_body(validation), mode="json")
    return JSONResponse(body, status_code=status, headers=headers)


def _does_what_was_asked(answer: PlannedAnswer) -> bool:
    """Return whether a plan fits and, of serving, keeps the load and the service level, told apart in older bodies."""
    if not answer.fits or answer.kind == "train":
        return answer.fits
    body = json.loads(answer.body)
    return bool(body.get("meets", body["meets_concurrency"] is not False and body["meets_slo"] is not False))


def _validation_note(validation: Job | NotYetAvailable | None) -> str:
    if validation is None:
        return ""
    if isinstance(validation, NotYetAvailable):
        return f"\nNot validated: {validation.detail}\n"
    return f"\nValidation queued: job {validation.job_id}\n"
