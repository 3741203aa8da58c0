"""Failures, checkpoints and what they leave of a run: goodput."""

from __future__ import annotations

import math

from planners.memory.job import Job
from planners.questions import Resilience

DAYS_A_MONTH = 30
SECONDS_A_DAY = 86_400
# Llama Team 2024, section 3.3.1: 2 TB/s of sustained storage throughput for 16,384 GPUs, arXiv:2407.21783.
CHECKPOINT_BYTES_PER_SECOND_PER_GPU = 2e12 / 16_384
# Jiang et al. 2024, MegaScale, section 4: detection and diagnosis within ten minutes on average, arXiv:2402.15627.
RESTART_SECONDS = 600.0


def gpu_failures_per_day(gpu_failures_per_month: float) -> float:
    """Return the chance that one GPU fails on a day: 8 % a month is 0.27 % a day."""
    return gpu_failures_per_month / DAYS_A_MONTH


def failures_per_day(gpus: int, gpu_failures_per_month: float) -> float:
    """Return how many failures a day a job of so many GPUs must expect."""
    return gpus * gpu_failures_per_day(gpu_failures_per_month)


def probability_of_failure_per_day(gpus: int, gpu_failures_per_month: float) -> float:
    """Return the chance that at least one of the GPUs fails on a day: 93 % for 1,000 GPUs at 8 % a month."""
    return 1.0 - (1.0 - gpu_failures_per_day(gpu_failures_per_month)) ** gpus


def mean_seconds_between_failures(gpus: int, gpu_failures_per_month: float) -> float:
    """Return the mean time between failures of the whole job; infinite where nothing fails."""
    per_day = failures_per_day(gpus, gpu_failures_per_month)
    return SECONDS_A_DAY / per_day if per_day else math.inf


def checkpoint_interval_seconds(checkpoint_seconds: float, mean_between_failures: float) -> float:
    """Return the Young-Daly interval √(2·δ·M) between checkpoints that take δ seconds each.

    Source: Young 1974, https://doi.org/10.1145/361147.361115; Daly 2006,
    https://doi.org/10.1016/j.future.2004.11.016
    """
    return math.sqrt(2.0 * checkpoint_seconds * mean_between_failures)


def goodput(
    *, interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, mean_between_failures: float
) -> float:
    """Return the part of wall time that becomes progress.

    Each interval pays for one checkpoint; each failure for a restart and, on
    average, half an interval done again (Daly 2006, first order).
    """
    if math.isinf(interval_seconds):
        return 1.0
    saving = checkpoint_seconds / (interval_seconds + checkpoint_seconds)
    lost = (restart_seconds + interval_seconds / 2.0) / mean_between_failures
    return max(0.0, (1.0 - saving) * (1.0 - min(lost, 1.0)))


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
    """Return the given restart time, or a published one."""
    return RESTART_SECONDS if resilience.restart_seconds is None else resilience.restart_seconds
