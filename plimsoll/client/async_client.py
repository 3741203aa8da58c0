"""The client of asynchronous programs; each method is that of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import httpx

from plimsoll.client import calls, transport
from plimsoll.client.calls import Call
from plimsoll.client.errors import ClientError
from plimsoll.client.methods import awaiting
from plimsoll.client.retries import Retries
from plimsoll.client.waiting import DEFAULT_POLL_SECONDS, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, JobWait
from plimsoll.service.jobs.answers import JobBody

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

    plan_train = awaiting(calls.plan_train)
    plan_infer = awaiting(calls.plan_infer)
    plan = awaiting(calls.plan)
    plans = awaiting(calls.plans)
    artifact = awaiting(calls.artifact)
    validate = awaiting(calls.validate)
    quantize = awaiting(calls.quantize)
    job = awaiting(calls.job)
    jobs = awaiting(calls.jobs)
    cancel = awaiting(calls.cancel)
    models = awaiting(calls.models)
    model = awaiting(calls.model)
    describe = awaiting(calls.describe)
    hardware = awaiting(calls.hardware)
    gpu = awaiting(calls.gpu)
    calibrate = awaiting(calls.calibrate)
    report = awaiting(calls.report)
    accuracy = awaiting(calls.accuracy)
    accuracy_csv = awaiting(calls.accuracy_csv)

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

    async def _once(self, call: Call[Any]) -> Any:
        try:
            response = await self._http.request(**transport.request_of(call))
        except httpx.TransportError as error:
            raise transport.unreachable(self._url, error) from error
        return transport.body_of(response)
