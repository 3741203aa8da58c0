"""How well an engine uses a card: the fitted weights of a roofline's terms, and how far they miss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from planners.serving.engine import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Between which multiples of an estimate nine of ten measured values of models held out lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One engine's weights; `engines/efficiencies.toml` says what each means and on what it was fitted.

    `expert_tile_rows` are the rows that its 8-bit kernels lay out for every expert, 0 where they take as many as come.
    """

    expert_tile_rows: int
    decode: Mapping[str, float]
    prefill: Mapping[str, float]
    token_band: Band
    first_token_band: Band


@cache
def efficiency(engine: str) -> Efficiency:
    """Return an engine's fitted figures, read once."""
    table = read_table("efficiencies")[engine]
    return Efficiency(
        expert_tile_rows=table["expert_tile_rows"],
        decode=table["decode"],
        prefill=table["prefill"],
        token_band=Band(**table["token_band"]),
        first_token_band=Band(**table["first_token_band"]),
    )
