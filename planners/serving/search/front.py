"""The Pareto front of cost against latency: deployments at loads, of which no other is both cheaper and faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plimsoll.planners.serving.search.candidates import Candidate, keeps_slo
from plimsoll.planners.serving.times.batching import SteadyState

# As many as a chart shows apart; a longer front is thinned out evenly.
MOST_POINTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A candidate at a concurrency. `cost` is for a token put out, `request_seconds` the mean time of an answer."""

    candidate: Candidate
    concurrency: int
    state: SteadyState
    request_seconds: float
    output_tokens_per_second: float
    cost: float


def point_of(candidate: Candidate) -> Point | None:
    """Return a candidate at its own load, None where nothing runs."""
    if candidate.state is None:
        return None
    return _point(candidate, candidate.concurrency, candidate.state)


def pareto_front(candidates: Sequence[Candidate]) -> tuple[Point, ...]:
    """Return the front from the fastest to the cheapest, of candidates that fit and keep all that was asked.

    Where no load was asked each stands at concurrencies 1, 2, 4, ... up to what its
    cache holds, as far as the service level is kept. Kinds of GPUs are compared where
    all have a price; else the front is of the best one's kind.
    """
    are_priced = all(each.question.hardware.usd_per_gpu_hour is not None for each in candidates)
    comparable = [each for each in candidates if are_priced or each.entry == candidates[0].entry]
    points = sorted(
        (point for candidate in comparable if candidate.is_satisfying for point in _points(candidate)),
        key=lambda point: (point.request_seconds, point.cost),
    )
    front: list[Point] = []
    for point in points:
        if not front or point.cost < front[-1].cost:
            front.append(point)
    return _thinned(front)


def _points(candidate: Candidate) -> Iterator[Point]:
    settings, deployment = candidate.settings, candidate.deployment
    if candidate.state is None or deployment is None:
        return
    yield _point(candidate, candidate.concurrency, candidate.state)
    if settings.concurrency is not None or settings.requests_per_second is not None:
        return
    concurrency = 1
    while concurrency < deployment.most_running:
        state = deployment.at(concurrency)
        if candidate.meets_slo is None or keeps_slo(candidate.question, state):
            yield _point(candidate, concurrency, state)
        concurrency *= 2


def _point(candidate: Candidate, concurrency: int, state: SteadyState) -> Point:
    tokens = candidate.settings.output_tokens
    rate = state.requests_per_second * tokens
    return Point(
        candidate=candidate,
        concurrency=concurrency,
        state=state,
        request_seconds=state.ttft_seconds + (tokens - 1) * state.tpot_seconds,
        output_tokens_per_second=rate,
        cost=candidate.cost_of(rate),
    )


def _thinned(front: Sequence[Point]) -> tuple[Point, ...]:
    """Return at most `MOST_POINTS`, both ends among them."""
    if len(front) <= MOST_POINTS:
        return tuple(front)
    last = len(front) - 1
    return tuple(front[round(step * last / (MOST_POINTS - 1))] for step in range(MOST_POINTS))
