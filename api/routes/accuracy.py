"""`POST /measurements` and `GET /accuracy`: predicted against measured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Body, Path, Response
from starlette.responses import StreamingResponse

from plimsoll.api import examples
from plimsoll.api.auth.callers import Asking
from plimsoll.api.negotiation import WantsCsv
from plimsoll.api.problems import problem_responses
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.service.measurements.accuracy_points import accuracy_csv, accuracy_points
from plimsoll.service.measurements.answers import Accuracy
from plimsoll.service.measurements.service import MeasurementReport
from plimsoll.service.requests.measurements import MeasurementRequest

# The largest number of a row.
MOST_NUMBER = 2**63 - 1
CSV = {"text/csv": {"schema": {"type": "string"}}}
MeasurementNumber: TypeAlias = Annotated[int, Path(ge=1, le=MOST_NUMBER, description="A measurement's number.")]

router = APIRouter(tags=["accuracy"], route_class=StrictRoute)


@router.post(
    "/measurements",
    status_code=HTTPStatus.CREATED,
    summary="Report what a real run used and how fast it went",
    response_model=MeasurementReport,
    responses=problem_responses(400, 404, 413, 415, 422, 500, 503),
)
async def report_measurement(
    services: Running,
    caller: Asking,
    request: Annotated[MeasurementRequest, Body(openapi_examples=examples.MEASUREMENT)],
) -> MeasurementReport:
    """With a `plan_id`, each quantity is set beside the plan's.

    A `log` is the text a vLLM or SGLang server printed at its start. What is measured of a server is learned: later
    plans of the same model, GPU, engine version and weights rest on it, name it under `plan.learned` and
    `assumptions`, and have another `calibration_revision`.
    """
    if request.plan_id is not None:
        await services.plan_readers.check(caller, request.plan_id)
    report = await services.measuring.report(request, asked_by=caller.name)
    if report.plan_id is not None:
        await services.plan_readers.note(caller, report.plan_id)
    return report


@router.delete(
    "/measurements/{measurement_id}",
    summary="Forget a measurement and what it taught",
    status_code=HTTPStatus.NO_CONTENT,
    response_model=None,
    responses=problem_responses(400, 403, 404, 422, 500, 503),
)
async def forget_measurement(services: Running, measurement_id: MeasurementNumber) -> Response:
    """Later plans no longer rest on it, and `GET /accuracy` no longer counts it; plans already made stay as they are.

    The numbers are those that `POST /measurements` returned, and that `plan.learned.provenance` names.
    """
    await services.measuring.forget(measurement_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get(
    "/accuracy",
    summary="Predicted against measured, over all that is on record",
    response_model=Accuracy,
    responses={**problem_responses(400, 422, 500, 503), 200: {"content": CSV}},
)
async def accuracy(services: Running, caller: Asking, as_csv: WantsCsv) -> Accuracy | Response:
    """`count`, `trace` and `device` are validations; `run` is memory and `run-speed` is speed of reported runs.

    As CSV, a line for each measurement on record, newest first; a key is told those of its own plans.
    """
    if as_csv:
        return await _csv_response(accuracy_csv(services.database, caller.sees_only))
    groups = await services.database.measurements.accuracy()
    points = await accuracy_points(services.database, caller.sees_only)
    return Accuracy(measurements=sum(group.count for group in groups), items=groups, points=points)


async def _csv_response(lines: AsyncIterator[str]) -> Response:
    """Return the lines as they come, once the first are there: until then a failure is still a problem document."""
    first = await anext(lines)

    async def all_lines() -> AsyncIterator[str]:
        yield first
        async for more in lines:
            yield more

    headers = {"content-disposition": 'inline; filename="accuracy.csv"'}
    return StreamingResponse(all_lines(), media_type="text/csv", headers=headers)
