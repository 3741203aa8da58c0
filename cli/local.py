"""Answers made by this process: no server, no database; long work runs in a child process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from plimsoll.cli.asking import Json, NoAnswer
from plimsoll.cli.screen import ShowProgress
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.service.persistence.records import Progress
from plimsoll.service.requests.pointers import field_errors

if TYPE_CHECKING:
    from plimsoll.cli.asking import Kind
    from plimsoll.service.catalogue.pages import CataloguePages
    from plimsoll.service.ground.settings import Settings
    from plimsoll.service.jobs.in_process import InProcess
    from plimsoll.service.requests.training import ValidationLevel

Request = TypeVar("Request", bound=BaseModel)
Answer = TypeVar("Answer")
_ANY: TypeAdapter[Any] = TypeAdapter(Any)
RUNNING = "running"


class Local:
    """Asks this process. Each answer imports what it needs, so that a list is there at once."""

    @cached_property
    def _settings(self) -> Settings:
        from plimsoll.service.ground.settings import Settings

        return Settings()

    @cached_property
    def _service(self) -> InProcess:
        from plimsoll.service.jobs.in_process import InProcess

        return InProcess(self._settings)

    @cached_property
    def _pages(self) -> CataloguePages:
        from plimsoll.service.catalogue.pages import CataloguePages
        from plimsoll.service.ground.settings import reading_anywhere
        from plimsoll.service.models.resolving import ModelResolver

        return CataloguePages(catalogue(), ModelResolver(catalogue(), reading_anywhere(self._settings)))

    def plan(self, kind: Kind, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return a plan's body, proved where the request asks for it; raises NoAnswer."""
        from plimsoll.service.requests.serving import InferRequest
        from plimsoll.service.requests.training import TrainRequest

        def tell(progress: Progress) -> None:
            show(_values(progress), RUNNING)

        async def train(asked: TrainRequest) -> dict[str, Any]:
            level = asked.validation
            body = await self._service.plan(asked)
            if level != "none":
                body["validation"] = _values(await self._service.prove(body["plan_id"], level, tell))
            return body

        if kind == "train":
            job = _request(TrainRequest, request)
            return _answered(lambda: train(job))
        deployment = _request(InferRequest, request)
        return _answered(lambda: self._service.plan(deployment))

    def stored_plan(self, plan_id: str) -> dict[str, Any]:
        """Raise NoAnswer: nothing is stored without a service."""
        raise _needs_service(f"Plan {plan_id[:80]} is stored by a service")

    def validate(self, plan_id: str, level: ValidationLevel, show: ShowProgress) -> dict[str, Any]:
        """Raise NoAnswer: nothing is stored without a service."""
        del level, show
        return self.stored_plan(plan_id)

    def quantize(self, request: Json, show: ShowProgress) -> dict[str, Any]:
        """Return the estimate and the finished job; raises NoAnswer."""
        from plimsoll.service.requests.jobs import QuantizeRequest

        asked = _request(QuantizeRequest, request)

        async def answer() -> dict[str, Any]:
            return _values(await self._service.quantize(asked, lambda progress: show(_values(progress), RUNNING)))

        return _answered(answer)

    def models(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's models, or those that a search finds."""
        return _values(self._pages.models(search))

    def describe(self, model: str | Json) -> dict[str, Any]:
        """Return a model's description; raises NoAnswer."""
        from plimsoll.service.requests.models import DescribeRequest

        asked = _request(DescribeRequest, {"model": model})

        async def answer() -> dict[str, Any]:
            return _values(self._pages.describe(asked, sequence_length=None))

        return _answered(answer)

    def hardware(self, search: str | None = None) -> dict[str, Any]:
        """Return the catalogue's GPUs and clusters, or those that a search finds."""
        return _values(self._pages.gpus(search))

    def gpu(self, name: str) -> dict[str, Any]:
        """Return one GPU's figures; raises NoAnswer."""

        async def answer() -> dict[str, Any]:
            return _values(catalogue().gpu(name))

        return _answered(answer)

    def accuracy(self) -> dict[str, Any]:
        """Raise NoAnswer: the record is a service's."""
        raise _needs_service("The record of predictions beside measurements is a service's")

    def accuracy_csv(self) -> str:
        """Raise NoAnswer, as `accuracy` does."""
        raise _needs_service("The record of predictions beside measurements is a service's")


def _request(kind: type[Request], values: Json) -> Request:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = field_errors(error.errors(), values, kind)
        raise NoAnswer("Refused.", [(each.pointer, each.detail) for each in found]) from error


def _answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    async def once() -> Answer:
        return await ask()

    try:
        return asyncio.run(once())
    except PlimsollError as error:
        _refuse(error)


def _refuse(error: PlimsollError) -> NoReturn:
    fields = [(error.pointer, error.detail)] if error.pointer else []
    if isinstance(error, ImpossibleLayout):
        fields = [(broken.pointer, broken.detail) for broken in error.broken]
    message = "Refused." if fields else error.detail
    raise NoAnswer(message, fields) from error


def _needs_service(what: str) -> NoAnswer:
    return NoAnswer(f"{what}: name one with --url (or PLIMSOLL_URL); `plimsoll serve` starts one.")


def _values(answer: Any) -> dict[str, Any]:
    values: dict[str, Any] = _ANY.dump_python(answer, mode="json")
    return values
