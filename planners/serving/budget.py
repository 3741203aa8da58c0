"""What an engine leaves of one GPU for the cache, term by term, by each engine's own rule.

    vLLM          total x utilization - weights - activations - outside torch [- CUDA graphs]
    SGLang        free before loading x fraction - weights
    TensorRT-LLM  (total - weights - activations - outside torch) x fraction

Sources: vllm/v1/worker/gpu_worker.py (determine_available_memory), and those of each
function; the engines' figures and their logs are named in `engines/*.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.engine import GIB, read_table
from plimsoll.planners.serving.engine_rules import MemoryRule
from plimsoll.planners.serving.lessons import ranks_of
from plimsoll.planners.serving.memory import activation_bytes, cuda_graph_bytes, non_torch_bytes
from plimsoll.planners.serving.settings import Settings
from plimsoll.planners.serving.static_fraction import given_fraction, graph_reserve_bytes, static_fraction
from plimsoll.planners.serving.weights import Stage


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


def requested_bytes(total_bytes: int, utilization: float) -> int:
    """Return what the engine claims of a card: a share of all its memory, not of what is free."""
    return int(total_bytes * utilization)


def stage_budgets(
    model: ModelSpec, settings: Settings, stages: Sequence[Stage], degrees: Degrees, *, total_bytes: int
) -> tuple[StageBudget, ...]:
    """Return the budget of one rank of each stage, by the engine's own rule."""
    # The layers' peak is the same on every stage, only the sampler's differs; and stages alike have one budget.
    budgets: dict[tuple[int, int, bool], StageBudget] = {}
    for stage in stages:
        alike = _alike(stage)
        if alike not in budgets:
            budgets[alike] = _budget(model, settings, stage, degrees, total_bytes)
    return tuple(budgets[_alike(stage)] for stage in stages)


def _alike(stage: Stage) -> tuple[int, int, bool]:
    return stage.total_bytes, len(stage.layers), stage.has_head


def _budget(model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int) -> StageBudget:
    rule = settings.profile.memory_rule
    if rule is MemoryRule.STATIC_FRACTION:
        return _static_budget(model, settings, stage, degrees, total_bytes)
    factor = 1.0 if settings.learned is None else settings.learned.activations_factor
    peak = round(activation_bytes(model, settings, degrees, has_head=stage.has_head) * factor)
    budget = _profiled_budget if rule is MemoryRule.PROFILED else _free_budget
    return budget(settings, stage, degrees, total_bytes, peak)


def _profiled_budget(
    settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int, activations: int
) -> StageBudget:
    profile, fraction = settings.profile, given_fraction(settings)
    non_torch = _outside_bytes(settings, degrees)
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


def _static_budget(
    model: ModelSpec, settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int
) -> StageBudget:
    """Return SGLang's budget: the fraction of what is free before loading, less the weights.

    Source: sglang, model_executor/model_runner_kv_cache_mixin.py, _profile_available_bytes.
    """
    fraction = static_fraction(model, settings, degrees, total_bytes)
    outside = _outside_bytes(settings, degrees)
    before = total_bytes - outside
    static = int(before * fraction)
    available = static - stage.total_bytes
    graphs = graph_reserve_bytes(settings, degrees)
    # What is neither weights nor cache; the fraction leaves it free and the engine fills it as it runs.
    rest = max(0, before - static - graphs)
    band = _unprofiled_band_bytes(settings, stage, fraction)
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


def _free_budget(settings: Settings, stage: Stage, degrees: Degrees, total_bytes: int, activations: int) -> StageBudget:
    """Return the budget of an engine that gives its cache a share of what a forward pass leaves.

    Source: tensorrt_llm/_torch/pyexecutor/_util.py, _cal_max_memory. The pass itself
    is estimated as vLLM's, so that its own size is the band.
    """
    fraction = given_fraction(settings)
    outside = _outside_bytes(settings, degrees)
    peak = stage.total_bytes + activations + outside
    free = total_bytes - peak
    available = int(free * fraction)
    band = round((_unprofiled_band_bytes(settings, stage, 1.0) + activations) * fraction)
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


def _outside_bytes(settings: Settings, degrees: Degrees) -> int:
    """Return what lies outside torch, as a start of the same engine showed where there was one."""
    planned = non_torch_bytes(settings.profile, degrees)
    return planned if settings.learned is None else settings.learned.runtime_bytes(planned, ranks_of(degrees))


def _band_bytes(settings: Settings, stage: Stage, activations: int, degrees: Degrees) -> int:
    table: Mapping[str, float] = read_table("memory")["band"]
    weights = table["weights_quantized_fraction" if settings.weights.is_quantized else "weights_exact_fraction"]
    non_torch = table["non_torch_tensor_gib" if degrees.ranks_per_stage > 1 else "non_torch_single_gib"]
    graphs = table["cuda_graphs_gib"] if settings.profile.cuda_graphs_in_budget else 0.0
    fixed: float = (table["activations_gib"] + non_torch + graphs) * GIB
    return round(weights * stage.total_bytes + table["activations_fraction"] * activations + fixed)


def _unprofiled_band_bytes(settings: Settings, stage: Stage, fraction: float) -> int:
    """Return the half-width of a budget without a profiling run: what is gone before it, and the weights."""
    table: Mapping[str, float] = read_table("memory")["band"]
    weights = table["weights_quantized_fraction" if settings.weights.is_quantized else "weights_exact_fraction"]
    return round(weights * stage.total_bytes + table["before_loading_gib"] * GIB * fraction)
