"""`POST /admission/validate`: the Kubernetes admission webhook."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from api.problems import problem_responses
from api.strict_json import StrictRoute
from planners.errors import NotYetAvailable

router = APIRouter(prefix="/admission", tags=["admission"], route_class=StrictRoute)


@router.post(
    "/validate",
    summary="Review a Kubernetes job before it is admitted (not there yet)",
    response_model=None,
    responses=problem_responses(400, 413, 415, 422, 500, 501),
)
async def validate_admission(
    review: Annotated[dict[str, Any], Body(description="An `admission.k8s.io/v1` AdmissionReview.")],  # noqa: ARG001
    timeout: Annotated[str | None, Query(description="As the API server sends it.")] = None,  # noqa: ARG001, ASYNC109
) -> Response:
    """Answers 501, which Kubernetes treats as the webhook's `failurePolicy` says."""
    raise NotYetAvailable("Admission review is not there yet.")
