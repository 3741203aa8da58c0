"""Waiting at a request rate: for a place among the running, and for the prompt's turn.

Both tails are exponential: exact for Erlang's queue, and for prompts of one length
the usual approximation (Kleinrock 1976, Queueing Systems II, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
