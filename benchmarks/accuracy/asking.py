"""Bodies of `POST /plan/train` asked of the service in this process, from the request's schema to the answer's JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.service.catalogue.gpus import resolve_hardware
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.in_process import InProcess
from plimsoll.service.requests.hardware import Fleet
from plimsoll.service.requests.pointers import field_errors
from plimsoll.service.requests.training import TrainRequest

Json: TypeAlias = Mapping[str, Any]
# The code of a body that the request's fields do not allow, as `api/errors.py` answers it with 422.
INVALID_REQUEST = "invalid-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why the service gave no plan."""

    code: str
    reasons: tuple[str, ...]


async def answered(service: InProcess, body: Json) -> Json | Refused:
    """Return what `POST /plan/train` answers, as JSON values.

    The body is written as JSON and read again, so that it holds nothing that a client could not send.
    """
    sent = json.loads(json.dumps(body))
    try:
        return await service.plan(TrainRequest.model_validate(sent))
    except ValidationError as problem:
        errors = field_errors(problem.errors(), sent, TrainRequest)
        return Refused(code=INVALID_REQUEST, reasons=tuple(error.detail for error in errors))
    except ImpossibleLayout as problem:
        return Refused(code=problem.code, reasons=tuple(broken.detail for broken in problem.broken))
    except PlimsollError as problem:
        return Refused(code=problem.code, reasons=(problem.detail,))


class Service:
    """One service in this process, which remembers its answers as far as readings are compared with them."""

    def __init__(self) -> None:
        self._service = InProcess(Settings())
        self._answers: dict[str, Json | Refused] = {}

    def answer(self, body: Json) -> Json | Refused:
        """Return the verdict, the layout, the memory and the step that are answered, or the refusal."""
        text = json.dumps(body, sort_keys=True)
        if text not in self._answers:
            self._answers[text] = _compared(asyncio.run(answered(self._service, body)))
        return self._answers[text]


def _compared(answer: Json | Refused) -> Json | Refused:
    if isinstance(answer, Refused):
        return answer
    plan = {name: answer["plan"][name] for name in ("layout", "memory", "step")}
    return {"fits": answer["fits"], "verdict": answer["verdict"], "plan": plan}


def question_of(body: Json) -> TrainingQuestion:
    """Return the planner's question of a body, for benchmarks that look into a plan's parts."""
    request = TrainRequest.model_validate(body)
    if isinstance(request.hardware, Fleet):
        raise TypeError("A measured run is on one kind of GPUs.")
    model = InProcess(Settings()).models.resolve(request.model)
    return request.to_question(model.spec, resolve_hardware(request.hardware, catalogue()))
