"""The client that waits for each answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import httpx

from planners.hardware import Gpu
from plimsoll.client import calls, transport
from plimsoll.client.calls import Call, Json, PlanBody
from plimsoll.client.errors import ClientError
from plimsoll.client.retries import Retries
from plimsoll.client.waiting import DEFAULT_POLL_SECONDS, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, JobWait
from service.answers import Accuracy, JobBody, JobPage, PlanPage, QuantizeBody
from service.calibrating import CalibrationReport
from service.catalogue_pages import GpuList, ModelList
from service.measuring import MeasurementReport
from service.model_description import ModelDescription
from service.plan_answers import InferPlanBody, TrainPlanBody
from service.requests.calibration import CalibrationRequest
from service.requests.jobs import DeviceChoice, QuantizeRequest
from service.requests.measurements import MeasurementRequest
from service.requests.serving import InferRequest
from service.requests.training import TrainRequest, ValidationLevel

Value = TypeVar("Value")


class Client:
    """Asks one service. Use it as a context manager, or close it.

    Every method raises `plimsoll.client.Refused` with the service's problem
    document, `Unreachable` where no service answers, and `UnexpectedAnswer`
    where something else does. What doing twice does no harm is sent again by `retries`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: Retries = Retries(),  # noqa: B008 - frozen
        transport_used: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to nothing yet; `key` is an API key, `transport_used` and `sleep` are for tests."""
        settings = transport.settings_of(url, key=key, timeout_seconds=timeout_seconds, transport=transport_used)
        self._http = httpx.Client(**settings)
        self._url = url
        self._retries = retries
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: Call[Value]) -> Value:
        """Return the answer to any call of `plimsoll.client.calls`."""
        return transport.value_of(call, self.json(call))

    def json(self, call: Call[Any]) -> Any:
        """Return the body of the answer to a call as JSON values, unchecked."""
        retried = 0
        while True:
            try:
                return self._once(call)
            except ClientError as error:
                seconds = self._retries.wait_seconds(error, retried=retried, is_repeatable=call.is_repeatable)
                if seconds is None:
                    raise
            self._sleep(seconds)
            retried += 1

    def plan_train(self, request: TrainRequest | Json, *, idempotency_key: str | None = None) -> TrainPlanBody:
        """Plan a training job."""
        return self.send(calls.plan_train(request, idempotency_key))

    def plan_infer(self, request: InferRequest | Json) -> InferPlanBody:
        """Size a serving deployment."""
        return self.send(calls.plan_infer(request))

    def plan(self, plan_id: str) -> PlanBody:
        """Return a stored plan."""
        return self.send(calls.plan(plan_id))

    def plans(self, **filters: str | int | bool | None) -> PlanPage:
        """Return stored plans, newest first; the filters are those of `GET /plans`."""
        return self.send(calls.plans(**filters))

    def artifact(self, plan_id: str, name: str) -> Any:
        """Return one launch file of a plan: its text, or JSON values."""
        return self.send(calls.artifact(plan_id, name))

    def validate(
        self,
        plan_id: str,
        level: ValidationLevel,
        *,
        device: DeviceChoice = "any",
        any_gpu_kind: bool = False,
        idempotency_key: str | None = None,
    ) -> JobBody:
        """Queue a proof of a stored plan and return its job."""
        return self.send(calls.validate(plan_id, level, idempotency_key, device=device, any_gpu_kind=any_gpu_kind))

    def quantize(self, request: QuantizeRequest | Json, *, idempotency_key: str | None = None) -> QuantizeBody:
        """Estimate a quantization and queue it."""
        return self.send(calls.quantize(request, idempotency_key))

    def job(self, job_id: str) -> JobBody:
        """Return a job as it stands."""
        return self.send(calls.job(job_id))

    def jobs(self, **filters: str | int | bool | None) -> JobPage:
        """Return jobs, newest first; the filters are those of `GET /jobs`."""
        return self.send(calls.jobs(**filters))

    def cancel(self, job_id: str) -> JobBody:
        """Cancel a job and return it as it then stands."""
        return self.send(calls.cancel(job_id))

    def wait(
        self,
        job_id: str,
        *,
        on_progress: Callable[[JobBody], None] = lambda _: None,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        timeout_seconds: float | None = None,
    ) -> JobBody:
        """Return a job once it is finished, however it ended; raises JobUnfinished when the time is up."""
        wait = JobWait(job_id, timeout_seconds=timeout_seconds)
        while not wait.is_over(job := self.job(job_id)):
            on_progress(job)
            self._sleep(poll_seconds)
        return job

    def models(self) -> ModelList:
        """Return the models of the catalogue."""
        return self.send(calls.models())

    def model(self, name: str) -> ModelDescription:
        """Describe a model of the catalogue, by id or alias."""
        return self.send(calls.model(name))

    def describe(self, model: str | Json) -> ModelDescription:
        """Describe any model that a request may name."""
        return self.send(calls.describe(model))

    def hardware(self) -> GpuList:
        """Return the GPUs and clusters of the catalogue."""
        return self.send(calls.hardware())

    def gpu(self, name: str) -> Gpu:
        """Return a GPU's figures, by id or alias."""
        return self.send(calls.gpu(name))

    def calibrate(self, gpu: str, request: CalibrationRequest | Json) -> CalibrationReport:
        """Fit a site's own efficiencies of a GPU to its measurements."""
        return self.send(calls.calibrate(gpu, request))

    def report(self, request: MeasurementRequest | Json) -> MeasurementReport:
        """Report what a real run used and how fast it went."""
        return self.send(calls.report(request))

    def accuracy(self) -> Accuracy:
        """Return how far the predictions on record were off."""
        return self.send(calls.accuracy())

    def _once(self, call: Call[Any]) -> Any:
        try:
            response = self._http.request(**transport.request_of(call))
        except httpx.TransportError as error:
            raise transport.unreachable(self._url, error) from error
        return transport.body_of(response)
