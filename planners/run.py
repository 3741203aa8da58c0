"""The whole run: steps, time, money, failures, and the sizes it can shrink and grow to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planners import resilience
from planners.layout.candidates import Candidates
from planners.layout.ranking import run_steps
from planners.layout.rules import obey
from planners.memory.job import Job
from planners.memory.peak import peak_bytes
from planners.plans import Run, Step
from planners.questions import TrainingQuestion
from planners.timing.step import train_flops_per_token

SECONDS_AN_HOUR = 3600
# Elastic sizes are offered from a quarter of the plan's GPUs to four times as many.
ELASTIC_SPAN = 4


def run_of(question: TrainingQuestion, job: Job, layouts: Candidates, index: int, step: Step) -> Run:
    """Return the run of one layout; what needs a token budget or a price is None without one."""
    gpus = int(layouts.gpus[index])
    rate = question.resilience.gpu_failures_per_month
    saved = resilience.checkpoint_bytes(job)
    saving_seconds = resilience.checkpoint_seconds(saved, gpus, question.resilience)
    between = resilience.mean_seconds_between_failures(gpus, rate)
    interval = resilience.checkpoint_interval_seconds(saving_seconds, between)
    productive = resilience.goodput(
        interval_seconds=interval,
        checkpoint_seconds=saving_seconds,
        restart_seconds=resilience.restart_seconds(question.resilience),
        mean_between_failures=between,
    )
    steps = run_steps(question)
    seconds = None if steps is None else steps * step.seconds
    hours = None if seconds is None else seconds * gpus / SECONDS_AN_HOUR
    price = question.hardware.usd_per_gpu_hour
    return Run(
        steps=steps,
        seconds=seconds,
        gpu_hours=hours,
        cost_usd=None if hours is None or price is None else hours * price,
        model_flops=None if question.tokens is None else train_flops_per_token(job) * question.tokens,
        failures_per_day=resilience.failures_per_day(gpus, rate),
        probability_of_failure_per_day=resilience.probability_of_failure_per_day(gpus, rate),
        checkpoint_bytes=saved,
        checkpoint_interval_seconds=interval if np.isfinite(interval) else None,
        goodput=productive,
        elastic_gpus=elastic_gpus(question, job, layouts.take([index])),
    )


def elastic_gpus(question: TrainingQuestion, job: Job, layout: Candidates) -> tuple[int, ...]:
    """Return the GPU counts on which the plan still runs with the same global batch.

    Tensor, pipeline and context parallelism and the micro-batch stay; replicas
    come and go and accumulation follows. Only counts whose memory fits are named.
    """
    ranks = int(layout.gpus[0] // layout.data_parallel[0])
    replicas = int(layout.data_parallel[0])
    most = question.global_batch_size // int(layout.micro_batch_size[0])
    is_grouped = int(layout.shard_group[0]) != replicas
    sizes = [
        degree
        for degree in range(max(replicas // ELASTIC_SPAN, 1), min(replicas * ELASTIC_SPAN, most) + 1)
        if most % degree == 0 and not (is_grouped and degree % int(layout.shard_group[0]))
    ]
    if not sizes:
        return ()
    degrees = np.array(sizes, dtype=np.int64)
    resized = replace(layout, data_parallel=degrees, shard_group=layout.shard_group if is_grouped else degrees)
    fits = obey(resized, job).allowed & (peak_bytes(resized, job) <= question.hardware.limit_bytes)
    return tuple(ranks * degree for degree, fit in zip(sizes, fits.tolist(), strict=True) if fit)
