"""What SGLang leaves for its cache: what is free before loading x fraction - weights."""

from __future__ import annotations

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engines.sglang.static_fraction import graph_reserve_bytes, static_fraction
from plimsoll.planners.serving.memory.budget import Shifts, StageBudget, outside_bytes, unprofiled_band_bytes
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import Stage


def static_budget(
    model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int
) -> StageBudget:
    """Return the fraction of what is free before loading, less the weights.

    Source: sglang, model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes.
    """
    fraction = static_fraction(model, settings, degrees, total_bytes)
    outside = outside_bytes(settings, degrees)
    before = total_bytes - outside
    static = int(before * fraction)
    available = static - stage.total_bytes
    graphs = graph_reserve_bytes(settings, degrees)
    # What is neither weights nor cache; the fraction leaves it free and the engine fills it as it runs.
    rest = max(0, before - static - graphs)
    band = unprofiled_band_bytes(settings, stage, fraction)
    return StageBudget(
        weights_bytes=stage.total_bytes,
        utilization_fraction=fraction,
        requested_bytes=outside + static,
        held_bytes=outside + stage.total_bytes,
        claimed_bytes=min(total_bytes, outside + static + graphs),
        activations_bytes=rest,
        non_torch_bytes=outside,
        cuda_graphs_bytes=min(graphs, before - static),
        available_bytes=max(0, available),
        available_low_bytes=max(0, available - band),
        available_high_bytes=max(0, available + band),
    )


def static_offset_bytes(shifts: Shifts) -> int:
    """Return what more than planned lay outside torch: what the cache lacks beyond the weights."""
    return round((shifts.missing_bytes - shifts.weights_bytes) / shifts.utilization_fraction)
