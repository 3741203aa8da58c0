"""Plans made in passing: computed, remembered for a while, never stored, so that no database is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.stopping import ShouldStop
from plimsoll.planners.plans import TrainingAnswer
from plimsoll.planners.serving.answer import ServingAnswer
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.training.planning import plan_training
from plimsoll.service.admission.budget import Budget
from plimsoll.service.catalogue.gpus import resolve_hardware
from plimsoll.service.engines.quantization import stored_methods
from plimsoll.service.ground.canonical import digest
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.plans.questions import in_stored_formats
from plimsoll.service.requests.hardware import Fleet, HardwareRequest
from plimsoll.service.requests.pointers import field_errors
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

MOST_REMEMBERED = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A planner's answer, and whether all of its advice was looked for.

    `is_stored_quantized` where the checkpoint that would be served holds quantized weights already, `stored_methods`
    the schemes that it may hold them in, and `is_mixture` where the model has experts.
    """

    answer: TrainingAnswer | ServingAnswer
    has_all_advice: bool = True
    is_stored_quantized: bool = False
    stored_methods: frozenset[str] = frozenset()
    is_mixture: bool = False


class Sizer:
    """Answers planning requests from memory or from the planners."""

    def __init__(self, models: ModelResolver, catalogue: Catalogue) -> None:
        self._models = models
        self._catalogue = catalogue
        self._known: RecentlyUsed[str, Sized] = RecentlyUsed(MOST_REMEMBERED)

    def remembered(self, request: Mapping[str, Any]) -> Sized | None:
        """Return the answer where it was given lately; quick enough for an event loop."""
        return self._known.get(digest(request))

    def answer(self, request: Mapping[str, Any], budget: Budget) -> Sized:
        """Return the answer to the body of a planning request: a training job where it has a part `training`.

        Advice is sought in the time that leaves some for the rest; an answer without all of it is not remembered.
        Raises InvalidQuestion for a body that is no such request, PlanningStopped once the
        budget is spent, and what else the planners raise.
        """
        key = digest(request)
        remembered = self._known.get(key)
        if remembered is not None:
            return remembered
        advising = _Asked(budget.is_too_late_for_advice)
        sized = self._computed(request, budget.is_spent, advising)
        sized = replace(sized, has_all_advice=not advising.has_said_so)
        if sized.has_all_advice:
            self._known.put(key, sized)
        return sized

    def _computed(self, request: Mapping[str, Any], should_stop: ShouldStop, stop_advising: ShouldStop) -> Sized:
        try:
            if "training" in request:
                training = TrainRequest.model_validate(request)
                hardware = self._hardware(training.hardware)
                question = training.to_question(self._models.resolve(training.model).spec, hardware)
                return Sized(answer=plan_training(question, should_stop, stop_advising))
            serving = InferRequest.model_validate(request)
        except ValidationError as error:
            first = field_errors(error.errors(), request, TrainRequest if "training" in request else InferRequest)[0]
            raise InvalidQuestion(first.detail, pointer=first.pointer) from error
        model, hardware = self._models.resolve(serving.model), self._hardware(serving.hardware)
        asked = in_stored_formats(serving, model, (hardware,))
        deployment = asked.to_question(model.spec, hardware, scale_block=model.scale_block)
        answer = plan_serving(deployment, should_stop, stop_advising)
        return Sized(
            answer=answer,
            is_stored_quantized=model.stored is not None,
            stored_methods=stored_methods(serving.model, model) if isinstance(serving.model, str) else frozenset(),
            is_mixture=model.spec.experts_per_token > 0,
        )

    def _hardware(self, asked: HardwareRequest) -> Hardware:
        if isinstance(asked, Fleet):
            raise InvalidQuestion("One workload runs on one kind of GPU; name it alone.", pointer="/hardware/fleet")
        return resolve_hardware(asked, self._catalogue)


class _Asked:
    """Passes a question on, and remembers whether the answer was ever yes."""

    def __init__(self, should_stop: ShouldStop) -> None:
        self._should_stop = should_stop
        self.has_said_so = False

    def __call__(self) -> bool:
        self.has_said_so = self.has_said_so or self._should_stop()
        return self.has_said_so
