"""What the forms offer to choose from, and what they begin with: the values and the defaults of the requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from plimsoll.planners.ground.ranges import RANGE, Range
from plimsoll.planners.ground.terms import Method, RecomputeMode, ServingObjective, TrainingObjective
from plimsoll.planners.questions import ServingQuestion
from plimsoll.service.requests.defaults import GLOBAL_BATCH_SIZE, SEQUENCE_LENGTH
from plimsoll.service.requests.jobs import Scheme
from plimsoll.service.requests.serving import CacheFormat, Engine, WeightFormat
from plimsoll.service.requests.shown import SERVING, Shown
from plimsoll.service.requests.training import (
    Framework,
    Optimizer,
    Precision,
    ValidationLevel,
)

DEFAULTS = {"sequence_length": SEQUENCE_LENGTH, "global_batch_size": GLOBAL_BATCH_SIZE}


def settings() -> tuple[Mapping[str, Any], ...]:
    """Return the engine settings that the form of a deployment offers, as its number inputs take them."""
    bounds: dict[str, Range] = {
        field.name: field.metadata[RANGE] for field in dataclasses.fields(ServingQuestion) if RANGE in field.metadata
    }
    return tuple(_number(shown, bounds[shown.name]) for shown in SERVING if shown.label is not None)


def _number(shown: Shown, bounds: Range) -> Mapping[str, Any]:
    """Return one input; the largest whole numbers lie beyond what anybody types."""
    least = bounds.least if bounds.above is None else bounds.above
    most, step = (None, "1") if bounds.is_whole else (f"{bounds.most:g}", "any")
    return {"name": shown.field, "label": shown.label, "min": f"{least:g}", "max": most, "step": step}


def choices() -> dict[str, tuple[str, ...]]:
    """Return the values of each field that takes one of a few."""
    fields: dict[str, Any] = {
        "method": Method,
        "precision": Precision,
        "optimizer": Optimizer,
        "recompute": RecomputeMode,
        "framework": Framework,
        "training_objective": TrainingObjective,
        "level": ValidationLevel,
        "weights": WeightFormat,
        "kv_cache": CacheFormat,
        "engine": Engine,
        "serving_objective": ServingObjective,
        "scheme": Scheme,
    }
    return {name: get_args(values) for name, values in fields.items()}
