"""Answers of a service, asked through the client."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from plimsoll.cli.asking import Json, NoAnswer
from plimsoll.cli.screen import ShowProgress
from plimsoll.client import Client, ClientError, Refused, Unreachable, calls
from plimsoll.client.calls import Call
from plimsoll.service.jobs.answers import JobBody
from plimsoll.service.requests.training import ValidationLevel

if TYPE_CHECKING:
    from plimsoll.cli.asking import Kind

Answer = TypeVar("Answer")
KEY_VARIABLE = "PLIMSOLL_API_KEY"


class Remote:
    """Asks a service, showing it the key of PLIMSOLL_API_KEY where that is set."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, key=os.environ.get(KEY_VARIABLE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def plan(self, kind: Kind, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return a plan's body, its proof finished where the request asks for one; raises NoAnswer."""
        call: Call[Any] = calls.plan_train(request) if kind == "train" else calls.plan_infer(request)
        body = self.ask(call)
        if body.get("validation"):
            body["validation"] = self._finished(body["validation"]["job_id"], show)
        return body

    def stored_plan(self, plan_id: str) -> dict[str, Any]:
        """Return the body of a stored plan; raises NoAnswer."""
        return self.ask(calls.plan(plan_id))

    def validate(self, plan_id: str, level: ValidationLevel, show: ShowProgress) -> dict[str, Any]:
        """Return the finished job that proved a plan; raises NoAnswer."""
        return self._finished(self.ask(calls.validate(plan_id, level))["job_id"], show)

    def quantize(self, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return the estimate and the finished job; raises NoAnswer."""
        queued = self.ask(calls.quantize(request))
        return {**queued, "job": self._finished(queued["job"]["job_id"], show)}

    def models(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's models, or those that a search finds; raises NoAnswer."""
        return self.ask(calls.models(search))

    def describe(self, model: str | Json) -> dict[str, Any]:
        """Return a model's description; raises NoAnswer."""
        return self.ask(calls.describe(model))

    def hardware(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's GPUs and clusters, or those that a search finds; raises NoAnswer."""
        return self.ask(calls.hardware(search))

    def gpu(self, name: str) -> dict[str, Any]:
        """Return one GPU's figures; raises NoAnswer."""
        return self.ask(calls.gpu(name))

    def accuracy(self) -> dict[str, Any]:
        """Return how far the predictions on record were off; raises NoAnswer."""
        return self.ask(calls.accuracy())

    def accuracy_csv(self) -> str:
        """Return every single measurement on record as CSV; raises NoAnswer."""
        return _answered(self._client.accuracy_csv)

    def calibrate(self, gpu: str, request: Json) -> dict[str, Any]:
        """Return the report of a calibration; raises NoAnswer."""
        return self.ask(calls.calibrate(gpu, request))

    def ask(self, call: Call[Any]) -> dict[str, Any]:
        """Return the body of the answer to a call that answers with an object; raises NoAnswer."""
        body: dict[str, Any] = _answered(lambda: self._client.json(call))
        return body

    def _finished(self, job_id: str, show: ShowProgress) -> dict[str, Any]:
        def tell(job: JobBody) -> None:
            progress = job.progress
            show({"done": progress.done, "total": progress.total, "message": progress.message}, job.state)

        _answered(lambda: self._client.wait(job_id, on_progress=tell))
        return self.ask(calls.job(job_id))


def _answered(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except Refused as refused:
        problem = refused.problem
        fields = [(field.pointer, field.detail) for field in problem.errors]
        raise NoAnswer("Refused." if fields else problem.detail, fields) from refused
    except Unreachable as error:
        raise NoAnswer(f"{error} `plimsoll serve` or `make serve` starts one.") from error
    except ClientError as error:
        raise NoAnswer(str(error)) from error
