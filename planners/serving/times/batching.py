"""Continuous batching: what a replica and a deployment deliver at a concurrency or at a request rate.

Closed loop: a fixed number of clients each send a request as soon as the last one is
answered. Open loop: requests come at random. A replica runs as many at once as its
cache and its batch limit hold; the others wait for a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.surface import FloatArray
from plimsoll.planners.serving.answer import CurvePoint
from plimsoll.planners.serving.times.pace import Pace, pace_of
from plimsoll.planners.serving.times.queueing import answers_by_running, occupancy, prompt_wait
from plimsoll.planners.serving.times.replica_work import ReplicaWork
from plimsoll.planners.serving.traffic import Traffic

# What p99 stands for.
TAIL_PART = 0.99
MOST_KEPT_ANSWERS = 64


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
class Burst:
    """What bursts see, and whether all of them are answered in time."""

    state: SteadyState
    keeps_up: bool


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
        pace, traffic, prompt = self.pace, self.traffic, self.pace.prompt_seconds
        if rate * prompt >= 1:
            return None
        answers = _answers_by_running(ByIdentity(pace), traffic, self.places)
        seen = occupancy(requests_per_second=rate, answers_per_second=answers, part=TAIL_PART)
        if seen is None:
            return None
        # A prompt that comes at random meets those that happen to be before it, and no lockstep of the others.
        first, following = pace.first_token_seconds(1), traffic.output_tokens - 1
        before, place = prompt_wait(requests_per_second=rate, prompt_seconds=prompt), seen.wait
        mean = before.mean_seconds + place.mean_seconds
        # Where fewer than 1 in 100 wait at all, the mean lies above what 99 of them see.
        waits = max(mean, before.quantile_seconds(TAIL_PART) + place.quantile_seconds(TAIL_PART))
        alone = pace.token_seconds(1)
        token = max(alone, (seen.running / rate - first) / following) if following else alone
        return SteadyState(
            ttft_seconds=first + mean,
            tpot_seconds=token,
            requests_per_second=requests_per_second,
            running=seen.running * self.replicas,
            ttft_p99_seconds=first + waits,
            tpot_p99_seconds=max(token, _open_token_seconds(pace, traffic, seen.crowded)),
        )

    def at_burst(self, requests: int, seconds: float) -> Burst:
        """Return what requests see that come all at once, again every so many seconds.

        Their prompts follow one another, and the requests beyond the places the answers of those before them.
        """
        busy = min(self.replicas, requests)
        each, pace, traffic = requests / busy, self.pace, self.traffic
        running = min(each, float(self.places))
        first, following = pace.first_token_seconds(1), traffic.output_tokens - 1
        prompts = running / self.work.attention_data_parallel * pace.prompt_seconds
        full = closed_loop(pace, traffic, clients=running, places=self.places, replicas=busy).requests_per_second
        waits = max(0.0, each - running) * busy / full
        answer = max(first, pace.engine_seconds(running, traffic.output_tokens))
        mean = first + prompts / 2 + waits / 2
        alone = pace.token_seconds(1)
        token = max(alone, (answer - first - prompts / 2) / following) if following else alone
        rate = requests / seconds
        keeps_up = answer + waits <= seconds or rate < full
        return Burst(
            state=SteadyState(
                ttft_seconds=mean,
                tpot_seconds=token,
                requests_per_second=rate if keeps_up else min(rate, full),
                running=float(requests),
            ),
            keeps_up=keeps_up,
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

    Where the running requests' prompts and steps take the engine longer than a request seems to take, all of it takes
    as much longer, a step no longer than one full of prompts (`Pace.longest_token_seconds`). Clients beyond the places
    wait for one (Little's law: clients = rate x time); a request holds its place no longer than the engine works on it,
    and not while the host reads and sends it.
    """
    running = min(clients, float(places))
    tpot = pace.token_seconds(running)
    first = pace.first_token_seconds(running)
    decoding = (traffic.output_tokens - 1) * tpot
    engine = pace.engine_seconds(running, traffic.output_tokens)
    alone = first + decoding
    if engine > alone:
        tpot = min(tpot * engine / alone, pace.longest_token_seconds(running))
        decoding = (traffic.output_tokens - 1) * tpot
        first = engine - decoding
    rate = clients / (first + decoding)
    if clients > running:
        held = max(engine, alone - _outside_seconds(pace))
        rate = min(rate, places / held)
        first = clients / rate - decoding
    return SteadyState(
        ttft_seconds=first,
        tpot_seconds=tpot,
        requests_per_second=rate * replicas,
        running=running * replicas,
    )


# Replicas of one kind, however many, ask for the same at every rate.
@lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _answers_by_running(same: ByIdentity[Pace], traffic: Traffic, places: int) -> FloatArray:
    pace, following = same.value, traffic.output_tokens - 1
    first = pace.first_token_seconds(1)
    return answers_by_running(
        places, lambda running: running / (first + following * _open_token_seconds(pace, traffic, running))
    )


def _open_token_seconds(pace: Pace, traffic: Traffic, running: float) -> float:
    """Return the time between tokens at random arrivals, never too short for the running requests' prompts."""
    running, following = max(1.0, running), traffic.output_tokens - 1
    token = pace.token_seconds(running)
    if not following:
        return token
    engine = pace.engine_seconds(running, traffic.output_tokens) - pace.first_token_seconds(1)
    return max(token, engine / following)


def _outside_seconds(pace: Pace) -> float:
    """Return what a first token takes outside the engine: all of it but its prompt in a step of its own."""
    return max(0.0, pace.first_token_seconds(1) - pace.prompt_pass_seconds - pace.step_seconds(1))
