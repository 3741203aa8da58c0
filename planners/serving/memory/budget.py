"""What an engine leaves of one GPU for the cache, term by term; by which rule is each engine's own.

The bands and their logs are named in `profile_run.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.degrees import Degrees, ranks_of
from plimsoll.planners.serving.memory.profile_run import activation_bytes, fitted_figures, non_torch_bytes
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.weights.stages import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudget:
    """One stage's terms in bytes, and what is left for the cache with its band.

    `held_bytes` is what of `requested_bytes` is not for the cache, more than that where it does not suffice;
    `requested_bytes` is what the engine means to take; `claimed_bytes` adds what it
    takes besides, and must be free when it starts. `utilization_fraction` is the
    engine's own fraction.
    """

    weights_bytes: int
    utilization_fraction: float
    requested_bytes: int
    held_bytes: int
    claimed_bytes: int
    activations_bytes: int
    non_torch_bytes: int
    cuda_graphs_bytes: int
    available_bytes: int
    available_low_bytes: int
    available_high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """By how many bytes a measured start's terms exceed its plan's, CUDA graphs where they are in the engine's budget.

    `missing_bytes` is what its cache lacks of the plan's.
    """

    utilization_fraction: float
    missing_bytes: int
    weights_bytes: float
    activations_bytes: float
    cuda_graphs_bytes: float


def given_fraction(settings: Settings) -> float:
    """Return the fraction of memory that the client or the engine's version states."""
    fraction = settings.gpu_memory_utilization
    if fraction is None:
        raise NotYetAvailable(
            f"{settings.profile.engine} states no memory fraction of its own; give gpu_memory_utilization.",
            pointer="/serving/gpu_memory_utilization",
        )
    return fraction


def profiled_activation_bytes(model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees) -> int:
    """Return what a profiling run takes, as a start of the same engine showed where there was one."""
    factor = 1.0 if settings.learned is None else settings.learned.activations_factor
    return round(activation_bytes(model, settings, degrees, has_head=stage.has_head) * factor)


def free_share_budget(
    model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int
) -> StageBudget:
    """Return the budget of an engine that gives its cache a share of what a forward pass leaves.

    The pass itself is estimated as a profiling run, so that its own size is the band.
    """
    activations = profiled_activation_bytes(model, settings, stage, degrees)
    fraction = given_fraction(settings)
    outside = outside_bytes(settings, degrees)
    peak = stage.total_bytes + activations + outside
    free = total_bytes - peak
    available = int(free * fraction)
    band = round((unprofiled_band_bytes(settings, stage, 1.0) + activations) * fraction)
    return StageBudget(
        weights_bytes=stage.total_bytes,
        utilization_fraction=fraction,
        requested_bytes=peak + max(0, available),
        held_bytes=peak,
        claimed_bytes=peak + max(0, available),
        activations_bytes=activations,
        non_torch_bytes=outside,
        cuda_graphs_bytes=0,
        available_bytes=max(0, available),
        available_low_bytes=max(0, available - band),
        available_high_bytes=max(0, available + band),
    )


def outside_bytes(settings: Settings, degrees: Degrees) -> int:
    """Return what lies outside torch, as a start of the same engine showed where there was one."""
    planned = non_torch_bytes(settings.profile, degrees)
    return planned if settings.learned is None else settings.learned.runtime_bytes(planned, ranks_of(degrees))


def unprofiled_band_bytes(settings: Settings, stage: Stage, fraction: float) -> int:
    """Return the half-width of a budget without a profiling run: what is gone before it, and the weights."""
    table: Mapping[str, float] = fitted_figures()["band"]
    weights = table["weights_quantized_fraction" if settings.weights.is_quantized else "weights_exact_fraction"]
    return round(weights * stage.total_bytes + table["before_loading_gib"] * GIB * fraction)


def free_share_offset_bytes(shifts: Shifts) -> int:
    """Return what more than planned lay outside torch where the cache has a share of what a forward pass leaves."""
    return round(shifts.missing_bytes / shifts.utilization_fraction - shifts.weights_bytes - shifts.activations_bytes)
