"""What the forms offer to choose from, and what they begin with: the values and the defaults of the requests."""

from __future__ import annotations

from typing import Any, get_args

from plimsoll.planners.ground.terms import Method, RecomputeMode, ServingObjective, TrainingObjective
from plimsoll.service.requests.defaults import GLOBAL_BATCH_SIZE, SEQUENCE_LENGTH
from plimsoll.service.requests.jobs import Scheme
from plimsoll.service.requests.serving import CacheFormat, Engine, WeightFormat
from plimsoll.service.requests.training import (
    Framework,
    Optimizer,
    Precision,
    ValidationLevel,
)

DEFAULTS = {"sequence_length": SEQUENCE_LENGTH, "global_batch_size": GLOBAL_BATCH_SIZE}


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
