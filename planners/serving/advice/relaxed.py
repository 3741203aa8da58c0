"""What a deployment that misses its load or its service level does keep: the least that has to be asked less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from plimsoll.planners.questions import ServiceLevel, ServingQuestion
from plimsoll.planners.serving.advice.changes import Change
from plimsoll.planners.serving.search.candidates import Candidate, judged, keeps_slo, simulated
from plimsoll.planners.serving.times.batching import Deployment, SteadyState

# Rates and latencies are offered to so many digits, on the side that is kept.
DIGITS = 3
HALVINGS = 40
# How often the gap to the rate that was asked is halved by planning anew, so that other layouts are looked at too.
PLANNED_HALVINGS = 6
# Latencies are told at so much of the largest rate that is held: nearer to it they grow without bound.
HELD_PART = 0.9


def relaxations(best: Candidate) -> Iterator[Change]:
    """Offer the largest load that keeps the service level, or else the level that is kept at the load that is held."""
    deployment = best.deployment
    if deployment is None or best.is_satisfying:
        return
    question = best.question
    if best.load is not None:
        yield from _less_bursts(best, deployment)
        return
    less = _less_load(best, deployment, lambda state: question.slo is None or keeps_slo(question, state))
    if less is not None:
        yield Change(kind="load", question=less, reason="The largest load at which these GPUs do what was asked.")
        return
    held = question if best.meets_concurrency is not False else _less_load(best, deployment, lambda _: True)
    if held is None or question.slo is None:
        return
    part = ""
    if held is not question and held.requests_per_second is not None:
        part = f"{100 * HELD_PART:.0f} % of "
        held = replace(held, requests_per_second=_rounded(HELD_PART * held.requests_per_second, math.floor))
    state = _state(held, best, deployment)
    if state is not None:
        level = _wider(question.slo, state)
        where = f"at {part}the largest load that it holds" if held is not question else "at the load that was asked"
        if question.requests_per_second is None and question.concurrency is None:
            where = "for one request at a time on each replica"
        reason = f"The service level that this deployment keeps {where}."
        yield Change(kind="level", question=replace(held, slo=level), reason=reason)


def raised(change: Change, asked: ServingQuestion, keeps: Callable[[ServingQuestion], bool]) -> Change:
    """Return an offer of a lower rate with the largest that any layout `keeps`: that of the best one may be less."""
    low, high = change.question.requests_per_second, asked.requests_per_second
    if change.kind != "load" or low is None or high is None:
        return change
    for _ in range(PLANNED_HALVINGS):
        middle = _rounded((low + high) / 2, math.floor)
        if not low < middle < high:
            break
        is_kept = keeps(replace(change.question, requests_per_second=middle))
        low, high = (middle, high) if is_kept else (low, middle)
    return replace(change, question=replace(change.question, requests_per_second=low))


def _less_bursts(best: Candidate, deployment: Deployment) -> Iterator[Change]:
    """Offer the largest bursts that are answered and keep the service level, and as long between them as one takes."""
    question, settings = best.question, best.settings
    low, high = 0, (question.concurrency or 1) - 1
    while low < high:
        middle = (low + high + 1) // 2
        smaller = simulated(
            judged(
                replace(question, concurrency=middle),
                replace(settings, concurrency=middle),
                best.replica,
                best.replicas,
                deployment,
            )
        )
        low, high = (middle, high) if smaller.is_satisfying else (low, middle - 1)
    if low:
        yield Change(
            kind="load",
            question=replace(question, concurrency=low),
            reason="The largest bursts at which this deployment does what was asked.",
        )
    # Where bursts outrun the replicas the first one is told.
    clears = None if best.load is None else best.load.burst_clears_seconds
    if best.meets_concurrency is False and clears is not None:
        yield Change(
            kind="burst_seconds",
            question=replace(question, burst_seconds=_rounded(clears, math.ceil)),
            reason="So far apart each burst is answered before the next one comes.",
        )


def _state(question: ServingQuestion, best: Candidate, deployment: Deployment) -> SteadyState | None:
    if question.requests_per_second is not None:
        return deployment.at_rate(question.requests_per_second)
    return deployment.at(question.concurrency or best.concurrency)


def _less_load(best: Candidate, deployment: Deployment, keeps: Callable[[SteadyState], bool]) -> ServingQuestion | None:
    """Return the question with the largest load below the asked one that is held and kept, None without one."""
    question = best.question
    if question.requests_per_second is not None:
        rate = _largest_rate(question.requests_per_second, deployment, keeps)
        return None if rate is None else replace(question, requests_per_second=rate)
    if question.concurrency is None:
        return None
    low, high = 0, min(question.concurrency - 1, deployment.most_running)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if keeps(deployment.at(middle)) else (low, middle - 1)
    return replace(question, concurrency=low) if low else None


def _largest_rate(asked: float, deployment: Deployment, keeps: Callable[[SteadyState], bool]) -> float | None:
    low, high = 0.0, asked
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        state = deployment.at_rate(middle)
        low, high = (middle, high) if state is not None and keeps(state) else (low, middle)
    return _rounded(low, math.floor) if low > asked / 10**DIGITS else None


def _wider(level: ServiceLevel, state: SteadyState) -> ServiceLevel:
    """Return a service level with what is missed of it as it is kept."""

    def kept(limit: float | None, seconds: float) -> float | None:
        return limit if limit is None or seconds <= limit else _rounded(seconds, math.ceil)

    return ServiceLevel(
        ttft_seconds=kept(level.ttft_seconds, state.ttft_seconds),
        tpot_seconds=kept(level.tpot_seconds, state.tpot_seconds),
    )


def _rounded(value: float, towards: Callable[[float], int]) -> float:
    places = DIGITS - 1 - math.floor(math.log10(value))
    scale = 10.0**places
    return round(towards(value * scale) / scale, places)
