"""The order of candidates: what is kept first, then the objective."""

from __future__ import annotations

import math

from plimsoll.planners.serving.replica import FITS
from plimsoll.planners.serving.search.candidates import Candidate


def shortfall(candidate: Candidate) -> tuple[float, ...]:
    """Return what is missed of all that was asked, the gravest first; zeros where nothing is, but 1 for the latency.

    Of deployments that do not keep all that was asked, those that requests outrun come last; of the others the one
    whose latencies are least beyond what was asked comes first, before one that holds more requests at once.
    """
    replica = candidate.replica
    return (
        0.0 if replica.fits else 1.0,
        0.0 if replica.keeps_limit else 1.0,
        0.0 if replica.verdict == FITS else 1.0,
        0.0 if candidate.is_satisfying else 1.0,
        1.0 if candidate.is_outrun else 0.0,
        candidate.latency_excess,
        0.0 if candidate.meets_concurrency is not False else 1.0,
    )


def rank(candidate: Candidate) -> tuple[float, ...]:
    """Return the sort key, least first: what is missed, the objective, fewer GPUs, sooner answers, smaller replicas.

    At a request rate all that keep it put out as much for as much: the one that answers sooner is best. Where nothing
    fits, the closest is the one whose cache holds the largest part of a request, and where none has a cache at all,
    the one that needs the least memory per GPU. Of an engine whose speed is not known the fewest GPUs are told apart
    all the same.
    """
    replica, missed = candidate.replica, shortfall(candidate)
    if candidate.state is None or candidate.deployment is None:
        items = replica.memory.items
        needed = float(items.total_bytes - items.kv_cache)
        question = candidate.question
        wants_fewest = question.objective == "fewest_gpus" or question.hardware.gpus.is_free
        fewest = (float(candidate.gpus),) if replica.fits and wants_fewest else ()
        return (
            *missed,
            *fewest,
            -replica.kv.max_concurrency,
            -float(replica.kv.available_bytes),
            needed,
            float(candidate.gpus),
        )
    return (*missed, *objective(candidate), float(candidate.gpus), request_seconds(candidate), float(replica.gpus))


def objective(candidate: Candidate) -> tuple[float, ...]:
    """Return what the client wants least of, of a candidate that runs."""
    question = candidate.question
    rate, gpus = candidate.output_tokens_per_second, float(candidate.gpus)
    if question.objective == "latency" and candidate.state is not None and candidate.deployment is not None:
        steps = candidate.deployment.traffic.output_tokens - 1
        goal = candidate.state.ttft_seconds + steps * candidate.state.tpot_seconds
    elif question.objective == "cost":
        goal = candidate.cost
    elif question.objective == "fewest_gpus":
        return (gpus, -rate)
    else:
        goal = -rate
    return (gpus, goal) if question.hardware.gpus.is_free else (goal,)


def request_seconds(candidate: Candidate) -> float:
    """Return the mean time of an answer, without end where nothing runs."""
    if candidate.state is None:
        return math.inf
    return candidate.state.ttft_seconds + (candidate.settings.output_tokens - 1) * candidate.state.tpot_seconds
