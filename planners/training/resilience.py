"""Failures, checkpoints and what they leave of a run: goodput."""

from __future__ import annotations

import math

from plimsoll.planners.catalogue.failure_rates import poisson_interval, published_range, published_rates
from plimsoll.planners.ground.units import DAYS_PER_MONTH, SECONDS_PER_DAY
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.questions import GPU_FAILURES_PER_MONTH, USUAL_FAILURES, Resilience

# Llama Team 2024, section 3.3.1, arXiv:2407.21783: 2 TB/s of sustained storage throughput (7 TB/s at its peak), here
# divided evenly among the 16,384 GPUs of the largest run.
CHECKPOINT_BYTES_PER_SECOND_PER_GPU = 2e12 / 16_384
# Jiang et al. 2024, MegaScale, section 6.3: failures are detected and diagnosed in less than ten minutes on average,
# arXiv:2402.15627. Reading the checkpoint comes on top of it.
RESTART_SECONDS = 600.0
# Kokolis et al. 2025, arXiv:2410.21680: restarts on Meta's clusters RSC-1 and RSC-2 take about 5 to 20 minutes.
LEAST_RESTART_SECONDS, MOST_RESTART_SECONDS = 300.0, 1200.0
# Whose rate of failures it is where a client counted them, or gave a number.
COUNTED, GIVEN = "counted", "given"
# e^700 is near the largest number: a segment of work that meets so many failures never ends.
MOST_FAILURES_A_SEGMENT = 700.0


def failure_rate_source(given: Resilience) -> str:
    """Return whose rate a job is planned with: a published one's name, `pessimistic`, `counted` or `given`."""
    if given.counted is not None:
        return COUNTED
    if given.failures_like is not None:
        return given.failures_like
    return USUAL_FAILURES if given.gpu_failures_per_month == GPU_FAILURES_PER_MONTH else GIVEN


def failure_interval(given: Resilience) -> tuple[float, float] | None:
    """Return between which parts of the GPUs may fail in a month; None where nothing bounds the rate.

    A client's own count has its Poisson interval, and so has that of a source that is named.
    Who says nothing may have any published cluster.
    """
    if given.counted is not None:
        low, high = poisson_interval(given.counted.failures)
        return given.counted.in_a_month(low), given.counted.in_a_month(high)
    if given.failures_like is not None:
        named = published_rates().get(given.failures_like)
        return None if named is None else named.interval
    if failure_rate_source(given) == GIVEN:
        return None
    least, most = published_range()
    return least.per_gpu_month, most.per_gpu_month


def gpu_failures_per_day(gpu_failures_per_month: float) -> float:
    """Return the chance that one GPU fails on a day: 8 % a month is 0.27 % a day."""
    return gpu_failures_per_month / DAYS_PER_MONTH


def failures_per_day(gpus: int, gpu_failures_per_month: float) -> float:
    """Return how many failures a day a job of so many GPUs must expect."""
    return gpus * gpu_failures_per_day(gpu_failures_per_month)


def probability_of_failure_per_day(gpus: int, gpu_failures_per_month: float) -> float:
    """Return the chance that at least one of the GPUs fails on a day: 93 % for 1,000 GPUs at 8 % a month."""
    return 1.0 - (1.0 - gpu_failures_per_day(gpu_failures_per_month)) ** gpus


def mean_seconds_between_failures(gpus: int, gpu_failures_per_month: float) -> float:
    """Return the mean time between failures of the whole job; infinite where nothing fails."""
    per_day = failures_per_day(gpus, gpu_failures_per_month)
    return SECONDS_PER_DAY / per_day if per_day else math.inf


def young_daly_interval_seconds(checkpoint_seconds: float, mean_between_failures: float) -> float:
    """Return the first-order interval √(2·δ·M) between checkpoints that take δ seconds each.

    Source: Young 1974, https://doi.org/10.1145/361147.361115; Daly 2006,
    https://doi.org/10.1016/j.future.2004.11.016
    """
    return math.sqrt(2.0 * checkpoint_seconds * mean_between_failures)


def daly_interval_seconds(checkpoint_seconds: float, mean_between_failures: float) -> float:
    """Return Daly's higher-order interval of work between checkpoints.

    √(2·δ·M)·(1 + √x/3 + x/9) − δ with x = δ/(2·M), for δ below 2·M; from there on
    a checkpoint a failure, M. Source: Daly 2006,
    https://doi.org/10.1016/j.future.2004.11.016
    """
    if math.isinf(mean_between_failures):
        return math.inf
    share = checkpoint_seconds / (2.0 * mean_between_failures)
    if share >= 1.0:
        return mean_between_failures
    first = young_daly_interval_seconds(checkpoint_seconds, mean_between_failures)
    return first * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - checkpoint_seconds


def goodput(
    *, interval_seconds: float, checkpoint_seconds: float, recovery_seconds: float, mean_between_failures: float
) -> float:
    """Return the part of wall time that becomes progress.

    Failures come at random, at work, while saving and while recovering; what was
    done since the last checkpoint is done again. Work of τ seconds then takes
    M·e^(R/M)·(e^((τ+δ)/M) − 1) of the clock (Daly 2006, his complete cost function).
    """
    if math.isinf(mean_between_failures):
        return 1.0
    lost = recovery_seconds / mean_between_failures
    segment = (interval_seconds + checkpoint_seconds) / mean_between_failures
    if lost + segment > MOST_FAILURES_A_SEGMENT:
        return 0.0
    return interval_seconds / (mean_between_failures * math.exp(lost) * math.expm1(segment))


def spare_nodes(
    nodes: int, *, node_failures_per_second: float, repair_seconds: float, target_availability: float
) -> tuple[int, float] | None:
    """Return the fewest spare nodes with which enough are up at any time, and how likely that is then.

    A node is up for 1/(1 + rate·repair) of the time, each by itself, so the number
    that is up is binomial. None where not even as many spares as nodes will do.
    """
    up = 1.0 / (1.0 + node_failures_per_second * repair_seconds)
    for spares in range(nodes + 1):
        available = enough_nodes_probability(nodes, nodes + spares, up)
        if available >= target_availability:
            return spares, available
    return None


def enough_nodes_probability(needed: int, there: int, up: float) -> float:
    """Return how likely at least `needed` of `there` nodes are up, each with probability `up`."""
    if up >= 1.0:
        return 1.0
    logs = [
        math.lgamma(there + 1)
        - math.lgamma(down + 1)
        - math.lgamma(there - down + 1)
        + (there - down) * math.log(up)
        + down * math.log1p(-up)
        for down in range(there - needed + 1)
    ]
    return min(math.fsum(math.exp(log) for log in logs), 1.0)


def checkpoint_bytes(job: Job) -> int:
    """Return the bytes of a full checkpoint: trainable parameters, master copies and moments; no gradients."""
    states, kind = job.states, job.optimizer
    size = states.moment if kind.moment_bytes is None else kind.moment_bytes
    total = 0.0
    for part in job.parts:
        for weight in part.trainable:
            elements = weight.elements * part.block.repeats
            total += elements * (states.parameter + states.master + kind.moments_of(weight) * size)
    return math.ceil(total)


def checkpoint_seconds(total_bytes: int, gpus: int, resilience: Resilience) -> float:
    """Return how long one checkpoint takes at the given rate, or at a published one for that many GPUs."""
    rate = resilience.checkpoint_bytes_per_second
    return total_bytes / (gpus * CHECKPOINT_BYTES_PER_SECOND_PER_GPU if rate is None else rate)


def restart_seconds(resilience: Resilience) -> float:
    """Return the given time from a failure to processes that run again, or a published one."""
    return RESTART_SECONDS if resilience.restart_seconds is None else resilience.restart_seconds


def recovery_seconds(resilience: Resilience, *, load_seconds: float) -> float:
    """Return what a failure costs before work goes on: restart, reading the checkpoint, and warming up.

    Warming up (compiling, filling caches, the first slow steps) is counted where it
    was given: no published figure holds for other jobs.
    """
    return restart_seconds(resilience) + load_seconds + (resilience.warm_up_seconds or 0.0)
