"""What the engine leaves for the cache on one rank of each stage of a replica."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.memory.budget import StageBudget
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import Stage


def stage_budgets(
    model: ModelSpec, settings: Settings, stages: Sequence[Stage], degrees: Degrees, *, total_bytes: int
) -> tuple[StageBudget, ...]:
    """Return the budget of one rank of each stage, by the engine's own rule."""
    budget = engine_named(settings.profile.engine).budget
    # The layers' peak is the same on every stage, only the sampler's differs; and stages alike have one budget.
    budgets: dict[tuple[int, int, bool], StageBudget] = {}
    for stage in stages:
        alike = _alike(stage)
        if alike not in budgets:
            budgets[alike] = budget(model, settings, stage, degrees, total_bytes)
    return tuple(budgets[_alike(stage)] for stage in stages)


def _alike(stage: Stage) -> tuple[int, int, bool]:
    return stage.total_bytes, len(stage.layers), stage.has_head
