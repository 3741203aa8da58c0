"""What vLLM leaves for its cache: total x utilization - weights - activations - outside torch [- CUDA graphs].

Source: vllm/v1/worker/gpu_worker.py, determine_available_memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.memory.budget import (
    Shifts,
    StageBudget,
    given_fraction,
    outside_bytes,
    profiled_activation_bytes,
)
from plimsoll.planners.serving.memory.profile_run import cuda_graph_bytes, fitted_figures
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import Stage


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """Return what the engine claims of a card: a share of all its memory, not of what is free."""
    return int(total_bytes * utilization)


def profiled_budget(
    model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int
) -> StageBudget:
    """Return what a share of the whole card leaves beside what a profiling run took."""
    activations = profiled_activation_bytes(model, settings, stage, degrees)
    profile, fraction = settings.profile, given_fraction(settings)
    non_torch = outside_bytes(settings, degrees)
    graphs = cuda_graph_bytes(len(stage.layers), settings.max_num_seqs)
    if settings.learned is not None:
        graphs = round(graphs * settings.learned.cuda_graphs_factor)
    requested = requested_bytes(total_bytes, fraction)
    within = graphs if profile.cuda_graphs_in_budget else 0
    held = stage.total_bytes + activations + non_torch + within
    available = requested - held
    band = _band_bytes(settings, stage, activations, degrees)
    return StageBudget(
        weights_bytes=stage.total_bytes,
        utilization_fraction=fraction,
        requested_bytes=requested,
        held_bytes=held,
        claimed_bytes=requested + graphs - within,
        activations_bytes=activations,
        non_torch_bytes=non_torch,
        cuda_graphs_bytes=graphs,
        available_bytes=max(0, available),
        available_low_bytes=max(0, available - band),
        available_high_bytes=max(0, available + band),
    )


def profiled_offset_bytes(shifts: Shifts) -> int:
    """Return what more than planned lay outside torch: what the cache lacks beyond the terms that were measured."""
    rest = shifts.missing_bytes - shifts.weights_bytes - shifts.activations_bytes
    return round(rest - shifts.cuda_graphs_bytes)


def _band_bytes(settings: Settings, stage: Stage, activations: int, degrees: Degrees) -> int:
    table: Mapping[str, float] = fitted_figures()["band"]
    weights = table["weights_quantized_fraction" if settings.weights.is_quantized else "weights_exact_fraction"]
    non_torch = table["non_torch_tensor_gib" if degrees.ranks_per_stage > 1 else "non_torch_single_gib"]
    graphs = table["cuda_graphs_gib"] if settings.profile.cuda_graphs_in_budget else 0.0
    fixed: float = (table["activations_gib"] + non_torch + graphs) * GIB
    return round(weights * stage.total_bytes + table["activations_fraction"] * activations + fixed)
