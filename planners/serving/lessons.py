"""What a measured start teaches beside what its plan already knew.

Figures that a log does not tell apart are found from what the cache was left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.learned import Learned, Ranks, offset_name
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.memory.budget import Shifts
from plimsoll.planners.serving.releases.profile import EngineProfile

# Beyond these a log is of another model, format or card than the plan: the worst public log is 5 % from its plan by
# weights and activations, graphs depend on the sizes captured, and the farthest latency is some 2.5 times its estimate.
MOST_FACTORS: Mapping[str, float] = {
    "weights_factor": 1.5,
    "activations_factor": 1.5,
    "cuda_graphs_factor": 4.0,
    "ttft_factor": 4.0,
    "tpot_factor": 4.0,
}
MOST_OFFSET_PART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """What a plan says of one GPU of its binding stage; `stage_weights_bytes` is of the fullest stage.

    `learned` is what the plan itself rests on, taken back before anything is learned anew.
    """

    profile: EngineProfile
    ranks: Ranks
    utilization_fraction: float
    card_bytes: int
    weights_bytes: int
    stage_weights_bytes: int
    activations_bytes: int
    runtime_bytes: int
    cuda_graphs_bytes: int
    available_bytes: int
    ttft_seconds: float | None
    tpot_seconds: float | None
    learned: Learned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """What was measured of the same start, None where it was not."""

    weights_bytes: int | None = None
    activations_bytes: int | None = None
    runtime_bytes: int | None = None
    cuda_graphs_bytes: int | None = None
    available_bytes: int | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The values learned, by the names of `Learned`, or why nothing was: `obstacle`."""

    values: Mapping[str, float]
    obstacle: str | None = None


def lesson(planned: PlannedStart, measured: MeasuredStart) -> Lesson:
    """Return what a measured start teaches beside what its plan already knew."""
    before = planned.learned
    ratios = {
        "weights_factor": (measured.weights_bytes, planned.stage_weights_bytes),
        "activations_factor": (measured.activations_bytes, planned.activations_bytes),
        "cuda_graphs_factor": (measured.cuda_graphs_bytes, planned.cuda_graphs_bytes),
        "ttft_factor": (measured.ttft_seconds, planned.ttft_seconds),
        "tpot_factor": (measured.tpot_seconds, planned.tpot_seconds),
    }
    moved = {name: found / said for name, (found, said) in ratios.items() if found and said}
    for name, factor in moved.items():
        most = MOST_FACTORS[name]
        if not 1 / most <= factor <= most:
            return Lesson(values={}, obstacle=f"{_words(name)} are {factor:.2f} times the plan's: another start.")
    offset = _offset_bytes(planned, measured, moved)
    if offset is not None and abs(offset) > MOST_OFFSET_PART * planned.card_bytes:
        return Lesson(values={}, obstacle="The cache differs by more than a quarter of the card: another start.")
    values: dict[str, float] = {
        name: factor * (1.0 if before is None else float(getattr(before, name))) for name, factor in moved.items()
    }
    if offset is not None:
        values[offset_name(planned.ranks)] = offset + (before.offset_bytes(planned.ranks) if before else 0)
    if not values:
        return Lesson(values={}, obstacle="Nothing was measured that a plan could use.")
    return Lesson(values=values)


def _offset_bytes(planned: PlannedStart, measured: MeasuredStart, moved: Mapping[str, float]) -> int | None:
    """Return what more than planned lies outside torch: the engine's rule for its cache, solved for that."""
    if measured.available_bytes is None or not planned.available_bytes:
        return None if measured.runtime_bytes is None else measured.runtime_bytes - planned.runtime_bytes
    graphs = planned.cuda_graphs_bytes * (moved.get("cuda_graphs_factor", 1.0) - 1)
    shifts = Shifts(
        utilization_fraction=planned.utilization_fraction,
        missing_bytes=planned.available_bytes - measured.available_bytes,
        weights_bytes=planned.weights_bytes * (moved.get("weights_factor", 1.0) - 1),
        activations_bytes=planned.activations_bytes * (moved.get("activations_factor", 1.0) - 1),
        cuda_graphs_bytes=graphs if planned.profile.cuda_graphs_in_budget else 0.0,
    )
    return engine_named(planned.profile.engine).offset_bytes(shifts)


def _words(name: str) -> str:
    return name.removesuffix("_factor").replace("_", " ")
