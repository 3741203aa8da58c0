"""Continuous batching in a closed loop: what a replica and a deployment deliver at a concurrency.

A fixed number of clients each send a request as soon as the last one is
answered. A replica runs as many at once as its cache and its batch limit hold;
the others wait for a place.
"""

from __future__ import annotations

from dataclasses import dataclass

from planners.serving.answer import CurvePoint
from planners.serving.latency import ReplicaWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Mean latencies and the rate at which requests finish."""

    ttft_seconds: float
    tpot_seconds: float
    requests_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Replicas that share the clients evenly; `places` requests run at once on each."""

    work: ReplicaWork
    places: int
    replicas: int
    input_tokens: int
    output_tokens: int

    @property
    def most_running(self) -> int:
        """Return how many requests run at once on all replicas."""
        return self.places * self.replicas

    def at(self, concurrency: int) -> SteadyState:
        """Return what `concurrency` clients see; replicas without a client stand idle."""
        busy = min(self.replicas, concurrency)
        state = replica_state(
            self.work,
            clients=concurrency / busy,
            places=self.places,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )
        return SteadyState(
            ttft_seconds=state.ttft_seconds,
            tpot_seconds=state.tpot_seconds,
            requests_per_second=state.requests_per_second * busy,
        )

    def point(self, concurrency: int) -> CurvePoint:
        """Return one point of the curve over concurrency."""
        state = self.at(concurrency)
        return CurvePoint(
            concurrency=concurrency,
            ttft_seconds=state.ttft_seconds,
            tpot_seconds=state.tpot_seconds,
            output_tokens_per_second=state.requests_per_second * self.output_tokens,
        )

    def curve(self) -> tuple[CurvePoint, ...]:
        """Return concurrency 1, 2, 4, ... up to what runs at once."""
        steps, concurrency = [], 1
        while concurrency < self.most_running:
            steps.append(concurrency)
            concurrency *= 2
        return tuple(self.point(step) for step in (*steps, self.most_running))


def replica_state(
    work: ReplicaWork, *, clients: float, places: int, input_tokens: int, output_tokens: int
) -> SteadyState:
    """Return the steady state of one replica with `clients` and room for `places`.

    Clients beyond the places wait whole cycles for one (Little's law: clients = rate x time).
    """
    running = min(clients, float(places))
    tpot = work.token_seconds(running, input_tokens=input_tokens, output_tokens=output_tokens)
    first = work.first_token_seconds(running, input_tokens=input_tokens, output_tokens=output_tokens)
    cycle = first + (output_tokens - 1) * tpot
    return SteadyState(
        ttft_seconds=first + cycle * (clients / running - 1),
        tpot_seconds=tpot,
        requests_per_second=running / cycle,
    )
