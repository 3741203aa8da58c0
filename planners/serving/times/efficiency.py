"""How well an engine uses a card: the fitted weights of a roofline's terms, and how far they miss.

Terms of the decode step and of the first token are in seconds at the card's own peak rates, or counts of operations,
layers, requests and steps, whose weights are then seconds. Each engine's weights are its `efficiency.toml`.

Measurements: the aggregated rows of aiconfigurator's silicon sample whose degrees multiply to their GPUs
(github.com/ai-dynamo/aiconfigurator, systems/silicon_sample.csv): rows of vLLM 0.12 to 0.18, SGLang 0.5, TensorRT-LLM
1.0 to 1.3, of Llama-3.1-8B, Qwen3-32B and -235B, gpt-oss-120b, DeepSeek-V3 and -R1, Qwen3.5-397B and GLM-5 on H100,
H200, B200 and B300; which are left out, and why: benchmarks/accuracy/serving/latencies.py.

Fit (benchmarks/accuracy/serving/fit.py): least squares of relative errors, seconds at the card's rates weighed by one
at least, each model on each card by the root of its rows, drawn to the physical values first for all engines together
and then from there for each engine. Bands: what nine of ten measured values are of the estimate when their model is
left out of both fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.planners.serving.releases.tables import known_engines, read_efficiency

# Which terms of a step a site's factor multiplies, by what they wait for; a prompt's all wait alike.
STEP_GROUPS: Mapping[str, tuple[str, ...]] = {
    "reading": ("dense_weights", "expert_weights", "expert_tiles", "cache"),
    "computing": ("compute_beyond_reading", "others_prefill_dense", "others_prefill_mixture"),
    "communication": ("all_reduce", "parallel_layers", "others_prefill_all_reduce"),
    "overheads": ("operations", "blackwell_operations", "quantized_matmuls", "requests", "steps"),
}
PROMPT_GROUP = "first_token"
FACTORS = (*STEP_GROUPS, PROMPT_GROUP)
# Seconds at the card's own rates: nothing is faster, so that no weight of them is below 1.
AT_PEAK = frozenset(
    {"dense_weights", "expert_weights", "expert_tiles", "compute_beyond_reading", "cache", "all_reduce",
     "compute_dense", "compute_mixture", "weights"}
)  # fmt: skip
# The step under way of a first token's time, whose own terms are scaled already.
STEP_UNDER_WAY = "decode_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Between which multiples of an estimate nine of ten measured values of models held out lie."""

    low: float
    high: float

    def widened(self, spread: float) -> Band:
        """Return the band as many times as wide on a logarithmic scale."""
        return Band(low=self.low**spread, high=self.high**spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One engine's weights.

    `expert_tile_rows` are the rows that its 8-bit kernels lay out for every expert, 0 where they take as many as come.
    """

    expert_tile_rows: int
    decode: Mapping[str, float]
    prefill: Mapping[str, float]
    token_band: Band
    first_token_band: Band


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    tables = (read_efficiency(engine) for engine in known_engines())
    return {table["timed_as"]: table for table in tables if table is not None}


def timed_engines() -> tuple[str, ...]:
    """Return the names under which engines' speeds are described."""
    return tuple(_tables())


@cache
def efficiency(engine: str) -> Efficiency:
    """Return an engine's fitted figures, read once."""
    return record(Efficiency, {name: value for name, value in _tables()[engine].items() if name != "timed_as"})


def scaled(shipped: Efficiency, factors: Mapping[str, float]) -> Efficiency:
    """Return an engine's figures with each group of terms multiplied by its factor, none faster than the card."""
    by_term = {name: factors[group] for group, names in STEP_GROUPS.items() for name in names}
    decode = {name: _weighed(name, weight, by_term[name]) for name, weight in shipped.decode.items()}
    prompt = factors[PROMPT_GROUP]
    prefill = {
        name: weight if name == STEP_UNDER_WAY else _weighed(name, weight, prompt)
        for name, weight in shipped.prefill.items()
    }
    return replace(shipped, decode=decode, prefill=prefill)


def _weighed(name: str, weight: float, factor: float) -> float:
    return max(1.0, weight * factor) if name in AT_PEAK else weight * factor


def engine_efficiency(engine: str, site: SiteEfficiency | None) -> Efficiency:
    """Return an engine's figures as the site measured them, where it did."""
    shipped = efficiency(engine)
    measured = None if site is None else site.serving.get(engine)
    if measured is None:
        return shipped
    return replace(
        scaled(shipped, measured.factors),
        token_band=shipped.token_band.widened(measured.token_spread),
        first_token_band=shipped.first_token_band.widened(measured.first_token_spread),
    )
