"""`/models`, `/hardware` and `/formats`: what requests may name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from starlette.responses import PlainTextResponse, Response

from plimsoll.api import examples
from plimsoll.api.errors import problem_of
from plimsoll.api.negotiation import WantsText
from plimsoll.api.problems import problem_responses
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.planners.formats import FORMATS, NumberFormat
from plimsoll.planners.ground.errors import UnknownGpu, UnknownModel
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.ranges import SEQUENCE_TOKENS
from plimsoll.service.calibrations.report import CalibrationReport
from plimsoll.service.catalogue.pages import GpuList, ModelList
from plimsoll.service.models.description import DEFAULT_SEQUENCE_LENGTH, ModelDescription
from plimsoll.service.requests.calibration import CalibrationRequest
from plimsoll.service.requests.models import DescribeRequest
from plimsoll.service.requests.values import MOST_NAME_CHARACTERS
from plimsoll.service.text.models import model_text

router = APIRouter(tags=["catalogue"], route_class=StrictRoute)

SequenceLength = Annotated[
    int | None,
    Query(
        ge=1,
        le=SEQUENCE_TOKENS.most,
        description=f"The sequence that FLOPs per token are counted for. Unset: {DEFAULT_SEQUENCE_LENGTH} tokens, or "
        "as many as the model takes.",
    ),
]
Search = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="Only those in whose id, aliases or name every word of this occurs, in any order and case.",
        examples=["llama 8b"],
    ),
]
TEXT = {"text/plain": {"schema": {"type": "string"}}}
GpuId = Annotated[str, Path(max_length=200, examples=["h100-sxm-80gb"])]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatList:
    """The number formats."""

    items: tuple[NumberFormat, ...]


@router.get(
    "/models",
    summary="List the models that requests may name",
    response_model=ModelList,
    responses=problem_responses(400, 422, 500),
)
async def list_models(services: Running, search: Search = None) -> ModelList:
    """Each with its aliases and its parameters, counted from its description."""
    return await asyncio.to_thread(services.pages.models, search)


@router.post(
    "/models/describe",
    summary="Describe any model",
    response_model=ModelDescription,
    responses={**problem_responses(400, 403, 413, 415, 422, 500, 501, 502, 504), 200: {"content": TEXT}},
)
async def describe_model(
    services: Running,
    text: WantsText,
    request: Annotated[DescribeRequest, Body(openapi_examples=examples.DESCRIBE)],
    sequence_length: SequenceLength = None,
) -> ModelDescription | Response:
    """Takes every form of `model` that the plan routes take.

    With a folder, `checkpoint` says whether its safetensors are of the model that its `config.json` describes.
    """
    description = await asyncio.to_thread(services.pages.describe, request, sequence_length=sequence_length)
    return PlainTextResponse(model_text(description)) if text else description


@router.get(
    "/models/{id:path}",
    summary="Describe a model of the catalogue",
    response_model=ModelDescription,
    responses={**problem_responses(400, 404, 422, 500), 200: {"content": TEXT}},
)
async def get_model(
    services: Running,
    text: WantsText,
    id: Annotated[str, Path(max_length=200, examples=["meta-llama/Llama-3.1-8B"])],  # noqa: A002 - as on the wire
    sequence_length: SequenceLength = None,
) -> ModelDescription | Response:
    """By id or alias, in whatever case."""
    try:
        description = await asyncio.to_thread(services.pages.model, id, sequence_length=sequence_length)
    except UnknownModel as error:
        return problem_of(error, status=HTTPStatus.NOT_FOUND)
    return PlainTextResponse(model_text(description)) if text else description


@router.get(
    "/hardware",
    summary="List the GPUs and the clusters that requests may name",
    response_model=GpuList,
    responses=problem_responses(400, 422, 500),
)
async def list_hardware(services: Running, search: Search = None) -> GpuList:
    """Each with the figures that plans are made from, and their sources."""
    return services.pages.gpus(search)


@router.get(
    "/hardware/{id}",
    summary="Return a GPU's figures",
    response_model=Gpu,
    responses=problem_responses(400, 404, 422, 500),
)
async def get_hardware(services: Running, id: GpuId) -> Gpu | Response:  # noqa: A002 - as on the wire
    """By id or alias, in whatever case."""
    try:
        return services.catalogue.gpu(id)
    except UnknownGpu as error:
        return problem_of(error, status=HTTPStatus.NOT_FOUND)


@router.put(
    "/hardware/{id}/calibration",
    summary="Fit a site's own efficiencies to its measurements",
    response_model=CalibrationReport,
    responses=problem_responses(400, 403, 404, 413, 415, 422, 500, 501, 502, 503, 504),
)
async def calibrate(
    services: Running,
    id: GpuId,  # noqa: A002 - as on the wire
    request: Annotated[CalibrationRequest, Body(openapi_examples=examples.CALIBRATION)],
) -> CalibrationReport | Response:
    """Replaces the calibration in force: later training plans on this GPU rest on it and name its revision.

    Few measurements move little: what they say of each fraction is its `resolution`, and what ships decides the rest.
    """
    try:
        gpu = services.catalogue.gpu(id)
    except UnknownGpu as error:
        return problem_of(error, status=HTTPStatus.NOT_FOUND)
    return await services.calibrations.calibrate(gpu, request)


@router.get(
    "/hardware/{id}/calibration",
    summary="Return a GPU's calibration in force",
    response_model=CalibrationReport,
    responses=problem_responses(400, 404, 422, 500, 503),
)
async def get_calibration(services: Running, id: GpuId) -> CalibrationReport | Response:  # noqa: A002 - as on the wire
    """By id or alias; 404 where the shipped efficiencies hold."""
    try:
        gpu = services.catalogue.gpu(id)
    except UnknownGpu as error:
        return problem_of(error, status=HTTPStatus.NOT_FOUND)
    return await services.calibrations.report(gpu)


@router.delete(
    "/hardware/{id}/calibration",
    summary="Forget a GPU's calibration",
    status_code=HTTPStatus.NO_CONTENT,
    response_model=None,
    responses=problem_responses(400, 404, 422, 500, 503),
)
async def delete_calibration(services: Running, id: GpuId) -> Response:  # noqa: A002 - as on the wire
    """From then on the shipped efficiencies hold; plans already made stay as they are."""
    try:
        gpu = services.catalogue.gpu(id)
    except UnknownGpu as error:
        return problem_of(error, status=HTTPStatus.NOT_FOUND)
    await services.calibrations.remove(gpu)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get(
    "/formats",
    summary="List the number formats: bits, range, digits, scales",
    response_model=FormatList,
    responses=problem_responses(400, 422, 500),
)
async def list_formats() -> FormatList:
    """With advice on loss scaling."""
    return FormatList(items=tuple(FORMATS.values()))
