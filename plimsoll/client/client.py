"""The client that waits for each answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import httpx

from plimsoll.client import calls, transport
from plimsoll.client.calls import Call
from plimsoll.client.errors import ClientError
from plimsoll.client.methods import waiting
from plimsoll.client.retries import Retries
from plimsoll.client.waiting import DEFAULT_POLL_SECONDS, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, JobWait
from plimsoll.service.jobs.answers import JobBody

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

    plan_train = waiting(calls.plan_train)
    plan_infer = waiting(calls.plan_infer)
    plan = waiting(calls.plan)
    plans = waiting(calls.plans)
    artifact = waiting(calls.artifact)
    validate = waiting(calls.validate)
    quantize = waiting(calls.quantize)
    job = waiting(calls.job)
    jobs = waiting(calls.jobs)
    cancel = waiting(calls.cancel)
    models = waiting(calls.models)
    model = waiting(calls.model)
    describe = waiting(calls.describe)
    hardware = waiting(calls.hardware)
    gpu = waiting(calls.gpu)
    calibrate = waiting(calls.calibrate)
    report = waiting(calls.report)
    accuracy = waiting(calls.accuracy)
    accuracy_csv = waiting(calls.accuracy_csv)

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

    def _once(self, call: Call[Any]) -> Any:
        try:
            response = self._http.request(**transport.request_of(call))
        except httpx.TransportError as error:
            raise transport.unreachable(self._url, error) from error
        return transport.body_of(response)
