"""What the planner says of one rank of a case."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.vllm_own_code.cases import Case
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.cache.pools import Capacity
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.caches import replica_cache
from plimsoll.planners.serving.memory.profile_run import activation_bytes, fitted_figures
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.settings.settings import resolve_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one rank holds: weights as `POST /plan/infer` says, layers at their worst, a cache of given bytes."""

    weights_bytes: int
    layers_bytes: int
    block_size: int
    cache: Capacity


def planned(case: Case, available_bytes: int) -> Planned:
    """Return a case's plan, and the planner's cache of so many bytes in place of the ones that the plan leaves it."""
    question = case.question
    settings = resolve_settings(question)
    plan = plan_serving(question).plan
    degrees = Degrees(tensor_parallel=case.tensor_parallel)
    workspace = round(fitted_figures()["activation"]["constant_gib"] * GIB)
    cache = replica_cache(question, settings, degrees)
    pools = cache.pools(available_bytes, range(question.model.num_layers))
    return Planned(
        weights_bytes=plan.memory.items.weights,
        layers_bytes=activation_bytes(question.model, settings, degrees, has_head=False) - workspace,
        block_size=plan.kv.block_size,
        cache=cache.capacity(pools, max_model_len=settings.max_model_len),
    )
