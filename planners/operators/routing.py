"""How a step's tokens fall on experts: how many experts they touch, and how much of the work the busiest rank has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from plimsoll.planners.operators.surface import FloatArray

MOST_KEPT_LISTS = 256


class Popularity(StrEnum):
    """Which experts tokens go to.

    `even` draws them all alike. `zipf` gives the expert of rank r a share of r to the minus exponent, whatever the
    step. `drawn` is how the measurements draw: each expert's load is a value between 1 and 0.8 times the tokens, with a
    density of x to the minus exponent (`sample_power_law` and `_generate_power_law_distribution` of aiconfigurator's
    collector/helper.py), so that larger steps are more uneven.
    """

    EVEN = "even"
    ZIPF = "zipf"
    DRAWN = "drawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A popularity of experts and its exponent, which `even` has none of."""

    popularity: Popularity
    exponent: float = 0.0


EVEN = Routing(popularity=Popularity.EVEN)
# Of `drawn`: the largest load of a token's choices where there are more than experts, and the bounds where fewer.
LARGEST_LOAD, FEW_LOADS = 0.8, (0.01, 2.0)


def choices(tokens: npt.ArrayLike, experts: int, per_token: int, routing: Routing = EVEN) -> FloatArray:
    """Return how many of a step's choices fall on each expert in the mean, the most wanted one first.

    Has an axis of experts behind those of `tokens`. No expert is chosen twice by a token.
    """
    steps = np.asarray(tokens, dtype=np.float64)[..., None]
    if routing.popularity is Popularity.DRAWN:
        wanted = _drawn_loads(steps, experts, per_token, routing.exponent)
    else:
        wanted = np.broadcast_to(_ranked(experts, routing.exponent), (*steps.shape[:-1], experts))
    return _within_tokens(wanted / wanted.sum(axis=-1, keepdims=True) * steps * per_token, steps)


def touched(
    tokens: npt.ArrayLike, experts: float, per_token: float, ranks: float = 1, routing: Routing = EVEN
) -> FloatArray:
    """Return how many of the busiest rank's experts at least one of all ranks' `tokens` goes to.

    Drawn evenly they are E (1 - (1 - k/E)^tokens) of E experts on one rank. The busiest of several ranks is taken to
    have its experts drawn as often as it has more than an equal part of the choices.
    """
    steps = np.asarray(tokens, dtype=np.float64)
    load = busiest_part(steps, experts, per_token, ranks, routing) * ranks
    if routing.popularity is Popularity.EVEN:
        return np.asarray(experts / ranks * (1 - (1 - per_token / experts) ** (steps * load)))
    each = choices(steps, round(experts), round(per_token), routing)
    if routing.popularity is Popularity.DRAWN:
        return _rounded_up(each * load[..., None], steps * per_token * load) / ranks
    missed = (1 - each / np.maximum(steps[..., None], 1e-9)) ** (steps * load)[..., None]
    return np.asarray((1 - missed).sum(axis=-1) / ranks)


def busiest_part(
    tokens: npt.ArrayLike, experts: float, per_token: float, ranks: float, routing: Routing = EVEN
) -> FloatArray:
    """Return the part of all choices that fall on the rank with the most, in the mean; experts lie on ranks at random.

    A rank's load is taken as normal: it varies with the experts that the rank happens to have and, but for `drawn`,
    with the tokens of the step. The largest of n values is near the quantile (n - 0.375) / (n + 0.25) (Blom 1958).
    """
    steps = np.asarray(tokens, dtype=np.float64)
    if ranks <= 1:
        return np.ones_like(steps)
    chosen = np.maximum(steps * per_token, 1e-9)
    if routing.popularity is Popularity.EVEN:
        variance = chosen * (1 - per_token / experts) / ranks
    else:
        each = choices(steps, round(experts), round(per_token), routing)
        variance = experts / ranks * each.var(axis=-1) * (1 - 1 / ranks)
        if routing.popularity is Popularity.ZIPF:
            variance = variance + (each * (1 - each / np.maximum(steps[..., None], 1e-9))).sum(axis=-1) / ranks
    highest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return np.asarray(np.minimum(1.0, 1 / ranks + highest * np.sqrt(variance) / chosen))


@lru_cache(maxsize=MOST_KEPT_LISTS)
def _ranked(experts: int, exponent: float) -> FloatArray:
    return np.asarray(np.arange(1, experts + 1, dtype=np.float64) ** -exponent)


def _drawn_loads(steps: FloatArray, experts: int, per_token: int, exponent: float) -> FloatArray:
    """Return the loads at evenly spaced quantiles of their density, the largest first."""
    quantiles = 1 - (np.arange(experts) + 0.5) / experts
    many = steps * per_token > experts
    low = np.where(many, 1.0, FEW_LOADS[0])
    high = np.where(many, LARGEST_LOAD * steps, FEW_LOADS[1])
    power = 1 - exponent
    ends = low**power, high**power
    return np.asarray(((ends[1] - ends[0]) * quantiles + ends[0]) ** (1 / power))


def _within_tokens(each: FloatArray, steps: FloatArray) -> FloatArray:
    """Return choices of which none exceeds the tokens; what does goes to the others, in proportion."""
    for _ in range(3):
        over = np.maximum(each - steps, 0.0)
        room = np.where(over > 0, 0.0, each)
        excess = over.sum(axis=-1, keepdims=True)
        each = np.minimum(each, steps) + excess * room / np.maximum(room.sum(axis=-1, keepdims=True), 1e-300)
    return np.minimum(each, steps)


def _rounded_up(each: FloatArray, chosen: FloatArray) -> FloatArray:
    """Return how many loads are not 0 when each is rounded and what is missing of all goes to the least of them."""
    rounded = np.rint(each)
    missing = np.maximum(chosen - rounded.sum(axis=-1), 0.0)
    return np.asarray(np.minimum((rounded > 0).sum(axis=-1) + missing, each.shape[-1]))
