"""Every call there is: its address, its body, and the type of its answer.

Requests and answers are the service's own types, so that no field is written
twice. A request may also be given as JSON values, and is then checked by the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.service.calibrations.report import CalibrationReport
from plimsoll.service.catalogue.pages import GpuList, ModelList
from plimsoll.service.jobs.answers import JobBody, JobPage, QuantizeBody
from plimsoll.service.measurements.answers import Accuracy
from plimsoll.service.measurements.service import MeasurementReport
from plimsoll.service.models.description import ModelDescription
from plimsoll.service.plans.answers import InferPlanBody, PlanPage, TrainPlanBody
from plimsoll.service.requests.calibration import CalibrationRequest
from plimsoll.service.requests.jobs import DeviceChoice, QuantizeRequest
from plimsoll.service.requests.measurements import MeasurementRequest
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest, ValidationLevel

Value = TypeVar("Value")
Json: TypeAlias = Mapping[str, Any]
PlanBody: TypeAlias = TrainPlanBody | InferPlanBody
Method: TypeAlias = Literal["GET", "POST", "PUT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Value]):
    """A request to send, and what its answer is."""

    method: Method
    path: str
    answer: Any
    """The type of the answer's body; None where the body is taken as it is."""
    body: Any = None
    query: Mapping[str, str | int] | None = None
    idempotency_key: str | None = None
    is_repeatable: bool = True
    """Whether sending it twice does what sending it once does."""

    def value(self, body: Any) -> Value:
        """Return the answer; raises pydantic.ValidationError where the body is not of the type."""
        value: Value = body if self.answer is None else _adapter(self.answer).validate_python(body)
        return value


@cache
def _adapter(answer: Any) -> TypeAdapter[Any]:
    return TypeAdapter(answer)


def plan_train(request: TrainRequest | Json, *, idempotency_key: str | None = None) -> Call[TrainPlanBody]:
    """Plan a training job."""
    return Call(
        method="POST",
        path="/plan/train",
        answer=TrainPlanBody,
        body=_json(request),
        idempotency_key=idempotency_key or _new_key(),
    )


def plan_infer(request: InferRequest | Json) -> Call[InferPlanBody]:
    """Size a serving deployment."""
    return Call(method="POST", path="/plan/infer", answer=InferPlanBody, body=_json(request))


def plan(plan_id: str) -> Call[PlanBody]:
    """Return a stored plan."""
    return Call(method="GET", path=f"/plans/{_step(plan_id)}", answer=PlanBody)


def plans(**filters: str | int | bool | None) -> Call[PlanPage]:
    """List stored plans, newest first; the filters are those of `GET /plans`."""
    return Call(method="GET", path="/plans", answer=PlanPage, query=_query(filters))


def artifact(plan_id: str, name: str) -> Call[Any]:
    """Return one launch file of a plan: its text, or JSON values."""
    return Call(method="GET", path=f"/plans/{_step(plan_id)}/artifacts/{_step(name)}", answer=None)


def validate(
    plan_id: str,
    level: ValidationLevel,
    *,
    idempotency_key: str | None = None,
    device: DeviceChoice = "any",
    any_gpu_kind: bool = False,
) -> Call[JobBody]:
    """Queue a proof of a stored plan; `device` and `any_gpu_kind` say where level `device` takes place."""
    where = {} if device == "any" and not any_gpu_kind else {"device": device, "any_gpu_kind": any_gpu_kind}
    return Call(
        method="POST",
        path=f"/plans/{_step(plan_id)}/validate",
        answer=JobBody,
        body={"level": level, **where},
        idempotency_key=idempotency_key or _new_key(),
    )


def quantize(request: QuantizeRequest | Json, *, idempotency_key: str | None = None) -> Call[QuantizeBody]:
    """Estimate a quantization and queue it."""
    return Call(
        method="POST",
        path="/quantize",
        answer=QuantizeBody,
        body=_json(request),
        idempotency_key=idempotency_key or _new_key(),
    )


def job(job_id: str) -> Call[JobBody]:
    """Return a job as it stands."""
    return Call(method="GET", path=f"/jobs/{_step(job_id)}", answer=JobBody)


def jobs(**filters: str | int | bool | None) -> Call[JobPage]:
    """List jobs, newest first; the filters are those of `GET /jobs`."""
    return Call(method="GET", path="/jobs", answer=JobPage, query=_query(filters))


def cancel(job_id: str) -> Call[JobBody]:
    """Cancel a job, and return it as it then stands; doing so again changes nothing."""
    return Call(method="POST", path=f"/jobs/{_step(job_id)}/cancel", answer=JobBody)


def models(search: str | None = None) -> Call[ModelList]:
    """List the models of the catalogue, or those whose id or alias holds a text."""
    return Call(method="GET", path="/models", answer=ModelList, query=_query({"search": search}))


def model(name: str) -> Call[ModelDescription]:
    """Describe a model of the catalogue, by id or alias."""
    return Call(method="GET", path=f"/models/{quote(name)}", answer=ModelDescription)


def describe(model: str | Json) -> Call[ModelDescription]:
    """Describe any model that a request may name."""
    return Call(method="POST", path="/models/describe", answer=ModelDescription, body={"model": model})


def hardware(search: str | None = None) -> Call[GpuList]:
    """List the GPUs and clusters of the catalogue."""
    return Call(method="GET", path="/hardware", answer=GpuList, query=_query({"search": search}))


def gpu(name: str) -> Call[Gpu]:
    """Return a GPU's figures, by id or alias."""
    return Call(method="GET", path=f"/hardware/{_step(name)}", answer=Gpu)


def calibrate(gpu: str, request: CalibrationRequest | Json) -> Call[CalibrationReport]:
    """Fit a site's own efficiencies of a GPU to its measurements."""
    path = f"/hardware/{_step(gpu)}/calibration"
    return Call(method="PUT", path=path, answer=CalibrationReport, body=_json(request))


def report(request: MeasurementRequest | Json) -> Call[MeasurementReport]:
    """Report what a real run used; twice is two runs, so it is not repeated by itself."""
    return Call(method="POST", path="/measurements", answer=MeasurementReport, body=_json(request), is_repeatable=False)


def accuracy() -> Call[Accuracy]:
    """Return how far the predictions on record were off."""
    return Call(method="GET", path="/accuracy", answer=Accuracy)


def accuracy_csv() -> Call[str]:
    """Return every single measurement on record as CSV."""
    return Call(method="GET", path="/accuracy", answer=None, query={"format": "csv"})


def _json(request: BaseModel | Json) -> Any:
    if isinstance(request, BaseModel):
        return request.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return request


def _query(filters: Mapping[str, str | int | bool | None]) -> dict[str, str | int]:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in filters.items()
        if value is not None
    }


def _step(text: str) -> str:
    return quote(text, safe="")


def _new_key() -> str:
    return str(uuid4())
