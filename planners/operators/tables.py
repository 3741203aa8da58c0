"""Which surfaces were measured, and which one stands for a card, an engine and a format.

A card's surfaces lie in one file, each read when it is first asked for. Where a card, an engine or a variant was not
measured, the nearest that was stands in, and `Evidence` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.formats import operations_per_second
from plimsoll.planners.operators.surface import FloatArray, Grid, Roofline, Surface, at_knots

FOLDER = Path(__file__).parent / "surfaces"
# Binary logarithms of nanoseconds are kept as whole numbers of this part of a doubling: a step is 0.3 %.
STEPS_OF_A_DOUBLING = 256
LOG2_NANOSECONDS = math.log2(1e9)
SEPARATOR = "|"
MOST_KEPT_TABLES = 1024
SIXTEEN_BITS = ("fp16",)
# The roofline of a variant on a card.
RooflineOf = Callable[[Gpu, str], Roofline]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured: an operator's `variant` (a format, a kernel, a number of ranks) in an engine's release.

    `is_own_card` is false where the times are scaled by published rates from another card's, and `is_own_engine`
    where another engine's kernel stands in.
    """

    card: str
    operator: str
    engine: str
    release: str
    variant: str
    is_own_card: bool
    is_own_engine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    engine: str
    release: str
    variant: str
    member: str


def member_name(operator: str, engine: str, release: str, variant: str) -> str:
    """Return the name of a surface in its card's file."""
    return SEPARATOR.join((operator, engine, release, variant))


def encoded(log2_seconds: FloatArray) -> npt.NDArray[np.uint16]:
    """Return the values at a surface's knots as they are kept; what grows does not fall by rounding."""
    steps = np.rint(np.maximum(log2_seconds + LOG2_NANOSECONDS, 0) * STEPS_OF_A_DOUBLING)
    return np.asarray(steps, dtype=np.uint16)


@cache
def measured_cards() -> tuple[str, ...]:
    """Return the ids of the cards with tables."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))


@cache
def measured_engines(operator: str) -> tuple[str, ...]:
    """Return the engines whose kernels of an operator were measured on any card."""
    return tuple(sorted({entry.engine for card in measured_cards() for entry in _entries(card).get(operator, ())}))


@cache
def _file(card: str) -> NpzFile:
    file: NpzFile = np.load(FOLDER / f"{card}.npz")
    return file


@cache
def _entries(card: str) -> Mapping[str, Sequence[_Entry]]:
    """Return what a card's file has of each operator, newest releases first."""
    by_operator: dict[str, list[_Entry]] = {}
    for member in _file(card).files:
        operator, engine, release, variant = member.split(SEPARATOR)
        entry = _Entry(engine=engine, release=release, variant=variant, member=member)
        by_operator.setdefault(operator, []).append(entry)
    for entries in by_operator.values():
        entries.sort(key=lambda entry: release_order(entry.release), reverse=True)
    return by_operator


def release_order(release: str) -> tuple[int, ...]:
    """Return the numbers of a release before any letters, by which releases are put in order."""
    numbers = []
    for part in release.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


@lru_cache(maxsize=MOST_KEPT_TABLES)
def _log2_seconds(card: str, member: str) -> FloatArray:
    return np.asarray(_file(card)[member].astype(np.float64) / STEPS_OF_A_DOUBLING - LOG2_NANOSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What of a card its surfaces depend on, by which they are kept."""

    card: str
    memory: float
    link: float
    arithmetic: tuple[tuple[str, float], ...]
    gpu: Gpu = field(compare=False)


def find(
    gpu: Gpu, operator: str, engine: str, wanted: Sequence[Sequence[str]], grid: Grid, roofline: RooflineOf
) -> tuple[Surface, Evidence] | None:
    """Return the surface that stands for an operator on a card, None where no card was measured with any variant.

    The card's own surfaces come first and then the nearest cards'; of one card the first group of `wanted` variants, of
    their engines the asked one, of its variants the first, of its releases the newest. What stands in takes as many
    times the roofline of the asked card and the first group as it took of its own. What was found is kept.
    """
    rates = _Rates(
        card=gpu.id,
        memory=gpu.memory_bytes_per_second,
        link=gpu.link_bytes_per_second,
        arithmetic=tuple(gpu.peak_flops_per_second.items()),
        gpu=gpu,
    )
    return _found(rates, operator, engine, tuple(tuple(group) for group in wanted), grid, roofline)


@lru_cache(maxsize=MOST_KEPT_TABLES)
def _found(
    rates: _Rates, operator: str, engine: str, wanted: tuple[tuple[str, ...], ...], grid: Grid, roofline: RooflineOf
) -> tuple[Surface, Evidence] | None:
    gpu = rates.gpu
    for card in _nearest(gpu):
        entries = _entries(card).get(operator, ())
        for group in wanted:
            entry = _best(entries, engine, group)
            if entry is None:
                continue
            evidence = Evidence(
                card=card,
                operator=operator,
                engine=entry.engine,
                release=entry.release,
                variant=entry.variant,
                is_own_card=card == gpu.id,
                is_own_engine=entry.engine == engine,
            )
            own, log2_seconds = roofline(gpu, wanted[0][0]), _log2_seconds(card, entry.member)
            if card != gpu.id or group is not wanted[0]:
                theirs = roofline(catalogue().gpu(card), entry.variant)
                scale = at_knots(own, grid.knots) - at_knots(theirs, grid.knots)
                # Another kernel of the same format on the same card is what was measured.
                if scale.any():
                    log2_seconds = grid.sharing(grid.growing(log2_seconds + scale))
            return Surface(knots=grid.knots, log2_seconds=log2_seconds, roofline=own), evidence
    return None


def _best(entries: Sequence[_Entry], engine: str, group: Sequence[str]) -> _Entry | None:
    """Return the newest of the asked engine's entries of the first variant that it has, or of another engine's."""
    for name in (engine, *sorted({entry.engine for entry in entries})):
        for variant in group:
            for entry in entries:
                if (entry.engine, entry.variant) == (name, variant):
                    return entry
    return None


def _nearest(gpu: Gpu) -> list[str]:
    """Return the measured cards, the most alike in bandwidth and in 16-bit arithmetic first."""
    known = catalogue()
    return sorted(measured_cards(), key=lambda card: _distance(gpu, known.gpu(card)))


def _distance(gpu: Gpu, other: Gpu) -> float:
    if gpu.id == other.id:
        return -1.0
    bandwidth = math.log(gpu.memory_bytes_per_second / other.memory_bytes_per_second)
    arithmetic = math.log(operations_per_second(gpu, SIXTEEN_BITS) / operations_per_second(other, SIXTEEN_BITS))
    return abs(bandwidth) + abs(arithmetic)
