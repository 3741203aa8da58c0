"""`POST /admission/validate`: the Kubernetes admission webhook."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, WithJsonSchema

from plimsoll.api.problems import problem_responses
from plimsoll.api.services import Running
from plimsoll.api.strict_json import StrictRoute
from plimsoll.service.admission.judge import LONGEST_SECONDS
from plimsoll.service.admission.review import answered, read_review

router = APIRouter(prefix="/admission", tags=["admission"], route_class=StrictRoute)

# What an answer takes on its way back through the API server.
ON_THE_WAY_SECONDS = 0.5
DURATION = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(ms|s)$")
EXAMPLE = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
        "operation": "CREATE",
        "name": "chat",
        "namespace": "serving",
        "object": {
            "metadata": {"name": "chat"},
            "spec": {
                "template": {
                    "spec": {
                        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
                        "containers": [
                            {
                                "name": "vllm",
                                "image": "vllm/vllm-openai:v0.19.0",
                                "args": ["--model", "Qwen/Qwen2.5-72B-Instruct", "--tensor-parallel-size", "2"],
                                "resources": {"limits": {"nvidia.com/gpu": "2"}},
                            }
                        ],
                    }
                }
            },
        },
        "dryRun": False,
    },
}
REVIEW_SCHEMA = {
    "type": "object",
    "additionalProperties": True,
    "description": "An `admission.k8s.io/v1` AdmissionReview.",
    "examples": [EXAMPLE],
}


class AdmissionStatus(BaseModel):
    """Why an object is refused, as `kubectl` shows it."""

    status: str
    message: str
    reason: str
    code: int


class AdmissionResponse(BaseModel):
    """The decision; `status` comes with a refusal only."""

    uid: str
    allowed: bool
    status: AdmissionStatus | None = None
    warnings: list[str] | None = None
    auditAnnotations: dict[str, str] | None = None  # noqa: N815


class AdmissionReviewAnswer(BaseModel):
    """An `admission.k8s.io/v1` AdmissionReview with its response."""

    apiVersion: str  # noqa: N815
    kind: str
    response: AdmissionResponse


@router.post(
    "/validate",
    summary="Review a Kubernetes workload before it is admitted",
    response_model=AdmissionReviewAnswer,
    response_model_exclude_none=True,
    responses=problem_responses(400, 413, 415, 422, 500),
    openapi_extra={"requestBody": {"required": True}},
)
async def validate_admission(
    services: Running,
    review: Annotated[
        Any,
        # Whatever it is, it is read below: what is no review at all is a 400 like the others.
        WithJsonSchema(REVIEW_SCHEMA),
        Body(),
    ] = None,
    timeout: Annotated[str | None, Query(description="As the API server sends it, `10s`.")] = None,  # noqa: ASYNC109
) -> dict[str, Any]:
    """Says whether what the workload starts fits its GPUs, from its launch command or an annotation.

    `plimsoll.dev/plan-id` names a stored plan, `plimsoll.dev/plan` holds a planning request; else the launch command
    itself is read. What cannot be read is let through with a warning that says what is missing. A dry run is answered
    alike: nothing is ever stored.
    """
    asked = read_review(review)
    answer = await services.admission.review(asked, seconds=_seconds(timeout))
    services.metrics.count_review(is_allowed=answer.is_allowed, is_judged=answer.is_judged)
    return answered(asked.uid, answer)


def _seconds(timeout: str | None) -> float:
    match = DURATION.match(timeout or "")
    if match is None:
        return LONGEST_SECONDS
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    return max(seconds - ON_THE_WAY_SECONDS, seconds / 2)
