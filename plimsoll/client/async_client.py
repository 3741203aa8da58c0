"""The client of asynchronous programs; each method is that of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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


class AsyncClient:
    """Asks one service as `Client` does. Use it as an asynchronous context manager, or close it."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retries: Retries = Retries(),  # noqa: B008 - frozen
        transport_used: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Connect to nothing yet; `key` is an API key, `transport_used` and `sleep` are for tests."""
        settings = transport.settings_of(url, key=key, timeout_seconds=timeout_seconds, transport=transport_used)
        self._http = httpx.AsyncClient(**settings)
        self._url = url
        self._retries = retries
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: Call[Value]) -> Value:
        """Return the answer to any call of `plimsoll.client.calls`."""
        return transport.value_of(call, await self.json(call))

    async def json(self, call: Call[Any]) -> Any:
        """Return the body of the answer to a call as JSON values, unchecked."""
        retried = 0
        while True:
            try:
                return await self._once(call)
            except ClientError as error:
                seconds = self._retries.wait_seconds(error, retried=retried, is_repeatable=call.is_repeatable)
                if seconds is None:
                    raise
            await self._sleep(seconds)
            retried += 1

    async def plan_train(self, request: TrainRequest | Json, *, idempotency_key: str | None = None) -> TrainPlanBody:
        """Plan a training job."""
        return await self.send(calls.plan_train(request, idempotency_key))

    async def plan_infer(self, request: InferRequest | Json) -> InferPlanBody:
        """Size a serving deployment."""
        return await self.send(calls.plan_infer(request))

    async def plan(self, plan_id: str) -> PlanBody:
        """Return a stored plan."""
        return await self.send(calls.plan(plan_id))

    async def plans(self, **filters: str | int | bool | None) -> PlanPage:
        """Return stored plans, newest first; the filters are those of `GET /plans`."""
        return await self.send(calls.plans(**filters))

    async def artifact(self, plan_id: str, name: str) -> Any:
        """Return one launch file of a plan: its text, or JSON values."""
        return await self.send(calls.artifact(plan_id, name))

    async def validate(
        self,
        plan_id: str,
        level: ValidationLevel,
        *,
        device: DeviceChoice = "any",
        any_gpu_kind: bool = False,
        idempotency_key: str | None = None,
    ) -> JobBody:
        """Queue a proof of a stored plan and return its job."""
        return await self.send(
            calls.validate(plan_id, level, idempotency_key, device=device, any_gpu_kind=any_gpu_kind)
        )

    async def quantize(self, request: QuantizeRequest | Json, *, idempotency_key: str | None = None) -> QuantizeBody:
        """Estimate a quantization and queue it."""
        return await self.send(calls.quantize(request, idempotency_key))

    async def job(self, job_id: str) -> JobBody:
        """Return a job as it stands."""
        return await self.send(calls.job(job_id))

    async def jobs(self, **filters: str | int | bool | None) -> JobPage:
        """Return jobs, newest first; the filters are those of `GET /jobs`."""
        return await self.send(calls.jobs(**filters))

    async def cancel(self, job_id: str) -> JobBody:
        """Cancel a job and return it as it then stands."""
        return await self.send(calls.cancel(job_id))

    async def wait(
        self,
        job_id: str,
        *,
        on_progress: Callable[[JobBody], None] = lambda _: None,
        poll_seconds: float = DEFAULT_POLL_SECONDS,
        timeout_seconds: float | None = None,
    ) -> JobBody:
        """Return a job once it is finished, however it ended; raises JobUnfinished when the time is up."""
        wait = JobWait(job_id, timeout_seconds=timeout_seconds)
        while not wait.is_over(job := await self.job(job_id)):
            on_progress(job)
            await self._sleep(poll_seconds)
        return job

    async def models(self) -> ModelList:
        """Return the models of the catalogue."""
        return await self.send(calls.models())

    async def model(self, name: str) -> ModelDescription:
        """Describe a model of the catalogue, by id or alias."""
        return await self.send(calls.model(name))

    async def describe(self, model: str | Json) -> ModelDescription:
        """Describe any model that a request may name."""
        return await self.send(calls.describe(model))

    async def hardware(self) -> GpuList:
        """Return the GPUs and clusters of the catalogue."""
        return await self.send(calls.hardware())

    async def gpu(self, name: str) -> Gpu:
        """Return a GPU's figures, by id or alias."""
        return await self.send(calls.gpu(name))

    async def calibrate(self, gpu: str, request: CalibrationRequest | Json) -> CalibrationReport:
        """Fit a site's own efficiencies of a GPU to its measurements."""
        return await self.send(calls.calibrate(gpu, request))

    async def report(self, request: MeasurementRequest | Json) -> MeasurementReport:
        """Report what a real run used and how fast it went."""
        return await self.send(calls.report(request))

    async def accuracy(self) -> Accuracy:
        """Return how far the predictions on record were off."""
        return await self.send(calls.accuracy())

    async def _once(self, call: Call[Any]) -> Any:
        try:
            response = await self._http.request(**transport.request_of(call))
        except httpx.TransportError as error:
            raise transport.unreachable(self._url, error) from error
        return transport.body_of(response)
