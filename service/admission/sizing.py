"""Plans made in passing: computed, remembered for a while, never stored, so that no database is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from planners.catalogue import Catalogue
from planners.errors import InvalidQuestion
from planners.hardware import Hardware
from planners.inference import plan_serving
from planners.plans import TrainingAnswer
from planners.serving.answer import ServingAnswer
from planners.training import plan_training
from service.canonical import canonical_json
from service.gpus import resolve_hardware
from service.models import ModelResolver
from service.plan_questions import in_stored_formats
from service.recently_used import RecentlyUsed
from service.requests.hardware import Fleet, HardwareRequest
from service.requests.serving import InferRequest
from service.requests.training import TrainRequest

MOST_REMEMBERED = 1_024
LONGEST_SECONDS = 10.0
"""A search goes on for no longer, for nobody waits any more: Kubernetes gives a webhook ten seconds."""


class Sizer:
    """Answers planning requests from memory or from the planners."""

    def __init__(self, models: ModelResolver, catalogue: Catalogue) -> None:
        self._models = models
        self._catalogue = catalogue
        self._answers: RecentlyUsed[str, TrainingAnswer | ServingAnswer] = RecentlyUsed(MOST_REMEMBERED)

    def remembered(self, request: Mapping[str, Any]) -> TrainingAnswer | ServingAnswer | None:
        """Return the answer where it was given lately; quick enough for an event loop."""
        return self._answers.get(canonical_json(request))

    def answer(self, request: Mapping[str, Any]) -> TrainingAnswer | ServingAnswer:
        """Return the answer to the body of a planning request: a training job where it has a part `training`.

        Raises InvalidQuestion for a body that is no such request, and what the planners raise.
        """
        key = canonical_json(request)
        remembered = self._answers.get(key)
        if remembered is None:
            remembered = self._computed(request)
            self._answers.put(key, remembered)
        return remembered

    def _computed(self, request: Mapping[str, Any]) -> TrainingAnswer | ServingAnswer:
        try:
            if "training" in request:
                training = TrainRequest.model_validate(request)
                hardware = self._hardware(training.hardware)
                question = training.to_question(self._models.resolve(training.model).spec, hardware)
                deadline = time.monotonic() + LONGEST_SECONDS
                return plan_training(question, lambda: time.monotonic() >= deadline)
            serving = InferRequest.model_validate(request)
        except ValidationError as error:
            first = error.errors()[0]
            where = "/" + "/".join(str(step) for step in first["loc"])
            raise InvalidQuestion(f"{first['msg']}.", pointer=where) from error
        model, hardware = self._models.resolve(serving.model), self._hardware(serving.hardware)
        return plan_serving(in_stored_formats(serving, model).to_question(model.spec, hardware))

    def _hardware(self, asked: HardwareRequest) -> Hardware:
        if isinstance(asked, Fleet):
            raise InvalidQuestion("One workload runs on one kind of GPU; name it alone.", pointer="/hardware/fleet")
        return resolve_hardware(asked, self._catalogue)
