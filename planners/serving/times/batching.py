"""Continuous batching: what a replica and a deployment deliver at a concurrency or at a request rate.

Closed loop: a fixed number of clients each send a request as soon as the last one is
answered. Open loop: requests come at random. A replica runs as many at once as its
cache and its batch limit hold; the others wait for a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll.planners.serving.answer import CurvePoint
from plimsoll.planners.serving.times.pace import Pace, pace_of
from plimsoll.planners.serving.times.queueing import place_wait, prompt_wait
from plimsoll.planners.serving.times.replica_work import ReplicaWork
from plimsoll.planners.serving.traffic import Traffic

# What p99 stands for, and how many standard deviations of a normal distribution lie below it.
TAIL_PART = 0.99
TAIL_DEVIATIONS = 2.326
# Halvings of the interval in which the number of running requests lies.
HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Mean latencies and the rate at which requests finish; the 99th percentiles in the open loop alone.

    `running` is how many requests run at once, or, in the open loop, on average.
    """

    ttft_seconds: float
    tpot_seconds: float
    requests_per_second: float
    running: float
    ttft_p99_seconds: float | None = None
    tpot_p99_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Replicas that share the clients evenly; `places` requests run at once on each."""

    work: ReplicaWork
    places: int
    replicas: int
    traffic: Traffic
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        """Look up one replica's times, which every load asks for."""
        object.__setattr__(self, "pace", pace_of(self.work, self.traffic))

    @property
    def most_running(self) -> int:
        """Return how many requests run at once on all replicas."""
        return self.places * self.replicas

    def at(self, concurrency: int) -> SteadyState:
        """Return what `concurrency` clients see; replicas without a client stand idle."""
        busy = min(self.replicas, concurrency)
        return closed_loop(self.pace, self.traffic, clients=concurrency / busy, places=self.places, replicas=busy)

    def at_rate(self, requests_per_second: float) -> SteadyState | None:
        """Return what requests see that come at random at this rate; None where they outrun the replicas."""
        rate = requests_per_second / self.replicas
        running = _running_at(self.pace, self.traffic, rate, self.places)
        return None if running is None else self._open_loop(requests_per_second, running)

    def _open_loop(self, requests_per_second: float, running: float) -> SteadyState | None:
        rate = requests_per_second / self.replicas
        pace, traffic = self.pace, self.traffic
        prompt = pace.prompt_seconds
        if rate * prompt >= 1:
            return None
        token = _open_token_seconds(pace, traffic, running)
        # A prompt that comes at random meets those that happen to be before it, and no lockstep of the others.
        first = pace.first_token_seconds(1)
        service = first + (traffic.output_tokens - 1) * token
        before, place = (
            prompt_wait(requests_per_second=rate, prompt_seconds=prompt),
            place_wait(requests_per_second=rate, service_seconds=service, places=self.places),
        )
        crowded = min(float(self.places), running + TAIL_DEVIATIONS * running**0.5)
        mean = before.mean_seconds + place.mean_seconds
        # Where fewer than 1 in 100 wait at all, the mean lies above what 99 of them see.
        waits = max(mean, before.quantile_seconds(TAIL_PART) + place.quantile_seconds(TAIL_PART))
        return SteadyState(
            ttft_seconds=first + mean,
            tpot_seconds=token,
            requests_per_second=requests_per_second,
            running=running * self.replicas,
            ttft_p99_seconds=first + waits,
            tpot_p99_seconds=_open_token_seconds(pace, traffic, crowded),
        )

    def point(self, concurrency: int) -> CurvePoint:
        """Return one point of the curve over concurrency."""
        state = self.at(concurrency)
        return CurvePoint(
            concurrency=concurrency,
            ttft_seconds=state.ttft_seconds,
            tpot_seconds=state.tpot_seconds,
            output_tokens_per_second=state.requests_per_second * self.traffic.output_tokens,
        )

    def curve(self) -> tuple[CurvePoint, ...]:
        """Return concurrency 1, 2, 4, ... up to what runs at once."""
        steps, concurrency = [], 1
        while concurrency < self.most_running:
            steps.append(concurrency)
            concurrency *= 2
        return tuple(self.point(step) for step in (*steps, self.most_running))


def closed_loop(pace: Pace, traffic: Traffic, *, clients: float, places: int, replicas: int = 1) -> SteadyState:
    """Return the steady state of replicas with `clients` and room for `places` each.

    Clients beyond the places wait whole cycles for one (Little's law: clients = rate x time). Where the running
    requests' prompts and steps take the engine longer than a request seems to take, all of it takes as much longer.
    """
    running = min(clients, float(places))
    tpot = pace.token_seconds(running)
    first = pace.first_token_seconds(running)
    cycle = first + (traffic.output_tokens - 1) * tpot
    stretched = max(1.0, pace.engine_seconds(running, traffic.output_tokens) / cycle)
    tpot, first, cycle = tpot * stretched, first * stretched, cycle * stretched
    return SteadyState(
        ttft_seconds=first + cycle * (clients / running - 1),
        tpot_seconds=tpot,
        requests_per_second=running / cycle * replicas,
        running=running * replicas,
    )


def _open_token_seconds(pace: Pace, traffic: Traffic, running: float) -> float:
    """Return the time between tokens at random arrivals, never too short for the running requests' prompts."""
    running, following = max(1.0, running), traffic.output_tokens - 1
    token = pace.token_seconds(running)
    if not following:
        return token
    engine = pace.engine_seconds(running, traffic.output_tokens) - pace.first_token_seconds(1)
    return max(token, engine / following)


def _running_at(pace: Pace, traffic: Traffic, rate: float, places: int) -> float | None:
    """Return how many requests run at once at a rate (Little's law), None where more than `places` would."""

    first = pace.first_token_seconds(1)

    def needed(running: float) -> float:
        return rate * (first + (traffic.output_tokens - 1) * _open_token_seconds(pace, traffic, running))

    low, high = 0.0, float(places)
    if needed(high) >= high:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return high
