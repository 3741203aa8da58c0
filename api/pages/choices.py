"""What the forms offer to choose from: the values that the requests take."""

from __future__ import annotations

from typing import Any, get_args

from service.requests.jobs import Scheme
from service.requests.serving import CacheFormat, Engine, ServingObjective, WeightFormat
from service.requests.training import (
    Framework,
    Method,
    Optimizer,
    Precision,
    RecomputeMode,
    TrainingObjective,
    ValidationLevel,
)


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
