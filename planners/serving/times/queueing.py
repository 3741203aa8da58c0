"""Waiting at a request rate: for a place among the running, and for the prompt's turn.

Tails are exponential: exact for a queue whose server's rate is fixed while any wait, and for prompts of one length the
usual approximation (Kleinrock 1976, Queueing Systems II, section 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.operators.surface import FloatArray

# Running requests are told apart up to so many; the rate of answers is asked at so many of their numbers between one
# and its double.
MOST_RUNNING, RATES_PER_DOUBLING = 2**14, 2
# A part that adding to a float of 53 bits leaves no trace of.
NEGLIGIBLE = 2.0**-60


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A wait that is zero but with `probability`, and then exponential with mean `seconds_if_any`."""

    probability: float
    seconds_if_any: float

    @property
    def mean_seconds(self) -> float:
        """Return the mean over all requests."""
        return self.probability * self.seconds_if_any

    def quantile_seconds(self, part: float) -> float:
        """Return the wait that `part` of all requests do not exceed."""
        if self.probability <= 1 - part:
            return 0.0
        return self.seconds_if_any * math.log(self.probability / (1 - part))


def prompt_wait(*, requests_per_second: float, prompt_seconds: float) -> Waiting:
    """Return the wait of prompts that come at random and take alike: M/D/1.

    The mean is load x prompt / 2 (1 - load) (Pollaczek-Khinchine). `requests_per_second`
    times `prompt_seconds` must be below 1.
    """
    load = requests_per_second * prompt_seconds
    return Waiting(probability=load, seconds_if_any=prompt_seconds / (2 * (1 - load)))


def place_wait(*, requests_per_second: float, service_seconds: float, places: int) -> Waiting:
    """Return the wait for one of `places`: Erlang's delay formula (M/M/c); the places must suffice."""
    offered = requests_per_second * service_seconds
    return Waiting(probability=erlang_delay(offered, places), seconds_if_any=service_seconds / (places - offered))


def erlang_delay(offered: float, places: int) -> float:
    """Return the probability that all `places` are taken (Erlang 1917).

    The loss formula upside down, 1 / loss = 1 + c / a + c (c - 1) / a^2 + ... for c places and a offered, whose terms
    rise and then fall: those below `NEGLIGIBLE` parts of the sum are left out, and a loss below it is none.
    """
    if offered == 0:
        return 0.0
    term = inverse_loss = 1.0
    for taken in range(places, 0, -1):
        term *= taken / offered
        inverse_loss += term
        if inverse_loss * NEGLIGIBLE > 1:
            return 0.0
        if term < NEGLIGIBLE * inverse_loss:
            break
    loss = 1 / inverse_loss
    return places * loss / (places - offered * (1 - loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How many requests run at once on a replica to which they come at random, on average and at most in 99 of 100.

    `wait` is for a place.
    """

    running: float
    crowded: float
    wait: Waiting


def answers_by_running(places: int, answers_per_second: Callable[[float], float]) -> FloatArray:
    """Return the answers in a second while 1, 2, 3 ... requests run, up to the places."""
    most = min(places, MOST_RUNNING)
    doublings = range(most.bit_length() * RATES_PER_DOUBLING + 1)
    knots = sorted({min(most, round(2 ** (each / RATES_PER_DOUBLING))) for each in doublings})
    return np.interp(np.arange(1, most + 1), knots, [answers_per_second(float(knot)) for knot in knots])


def occupancy(*, requests_per_second: float, answers_per_second: FloatArray, part: float) -> Occupancy | None:
    """Return how many requests run of those that come at random, `crowded` in this part of time; None beyond reach.

    `answers_per_second` are those while 1, 2, 3 ... requests run, up to the places.

    A replica whose rate of answers depends on how many run is one server of that rate in a network of queues
    (flow-equivalent server: Chandy, Herzog and Woo 1975, Parametric Analysis of Queuing Networks, IBM J. Res. Dev.
    19(1)): n requests are there in proportion to the product of rate / answers(k) over k = 1 to n, in which answers are
    those of full places beyond them. With answers in proportion to n it is Erlang's M/M/c.
    """
    full = float(answers_per_second[-1])
    if requests_per_second >= full:
        return None
    logs = np.concatenate(([0.0], np.cumsum(np.log(requests_per_second / answers_per_second))))
    weights = np.exp(logs - logs.max())
    ratio = requests_per_second / full
    # All that wait beside those that fill the places.
    weights[-1] /= 1 - ratio
    parts = weights / weights.sum()
    return Occupancy(
        running=float(parts @ np.arange(len(parts))),
        crowded=float(np.searchsorted(np.cumsum(parts), part)),
        wait=Waiting(probability=float(parts[-1]), seconds_if_any=1 / (full - requests_per_second)),
    )
