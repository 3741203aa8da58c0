"""The whole run: steps, time, money and failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planners.derived import Derived
from plimsoll.planners.ground.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.plans import Layout, Run, SpareNodes, Step
from plimsoll.planners.questions import Resilience, TrainingQuestion
from plimsoll.planners.search.objectives import run_steps
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.step import train_flops_per_token
from plimsoll.planners.training import resilience
from plimsoll.planners.training.recovery import Failing, recoveries


def run_of(
    question: TrainingQuestion,
    job: Job,
    layout: Layout,
    step: Step,
    efficiency: Efficiency,
    elastic: tuple[int, ...],
    derived: Derived,
) -> Run:
    """Return the run of one layout; what needs a token budget or a price is None without one.

    `elastic` are the GPU counts on which it still runs. `derived` works out what follows from failures.
    """
    given = question.resilience
    rate = given.gpu_failures_per_month
    saved = resilience.checkpoint_bytes(job)
    saving_seconds = resilience.checkpoint_seconds(saved, layout.gpus, given)
    between = resilience.mean_seconds_between_failures(layout.gpus, rate)
    recovery_seconds = resilience.recovery_seconds(given, load_seconds=saving_seconds)
    kept = derived.part(
        "plan.run.goodput",
        lambda: _kept(step.seconds, saving_seconds, recovery_seconds, between),
        otherwise=_Kept(first_order=None, interval=None, goodput=None),
    )
    bounds = derived.part(
        "plan.run.goodput_low",
        lambda: _bounds(given, layout.gpus, step.seconds, saving_seconds, recovery_seconds, between),
        otherwise=_Bounds(),
    )
    steps = run_steps(question)
    seconds = None if steps is None else steps * step.seconds
    hours = None if seconds is None else seconds * layout.gpus / SECONDS_PER_HOUR
    price = question.hardware.usd_per_gpu_hour
    failing = Failing(
        checkpoint_bytes=saved,
        storage_seconds=saving_seconds,
        restart_seconds=recovery_seconds - saving_seconds,
        mean_between_failures=between,
        step_seconds=step.seconds,
    )
    return Run(
        steps=steps,
        seconds=seconds,
        gpu_hours=hours,
        cost_usd=None if hours is None or price is None else hours * price,
        model_flops=None if question.tokens is None else train_flops_per_token(job) * question.tokens,
        failures_per_day=resilience.failures_per_day(layout.gpus, rate),
        probability_of_failure_per_day=resilience.probability_of_failure_per_day(layout.gpus, rate),
        checkpoint_bytes=saved,
        checkpoint_seconds=saving_seconds,
        checkpoint_interval_seconds=kept.first_order,
        checkpoint_interval_daly_seconds=kept.interval,
        recovery_seconds=recovery_seconds,
        goodput=kept.goodput,
        expected_seconds=seconds / kept.goodput if seconds is not None and kept.goodput else None,
        spare_nodes=derived.part("plan.run.spare_nodes", lambda: spare_nodes_of(question, layout.gpus), otherwise=None),
        elastic_gpus=elastic,
        recovery=derived.part(
            "plan.run.recovery",
            lambda: recoveries(layout, elastic, question.hardware, efficiency, failing),
            otherwise=(),
        ),
        failure_rate_source=resilience.failure_rate_source(given),
        failures_per_day_low=bounds.failures_per_day_low,
        failures_per_day_high=bounds.failures_per_day_high,
        goodput_low=bounds.goodput_low,
        goodput_high=bounds.goodput_high,
    )


def goodput_of(question: TrainingQuestion, job: Job, gpus: int, step_seconds: float) -> float | None:
    """Return the part of a run's time that failures leave for it on so many GPUs."""
    given = question.resilience
    saving_seconds = resilience.checkpoint_seconds(resilience.checkpoint_bytes(job), gpus, given)
    between = resilience.mean_seconds_between_failures(gpus, given.gpu_failures_per_month)
    recovery_seconds = resilience.recovery_seconds(given, load_seconds=saving_seconds)
    return _kept(step_seconds, saving_seconds, recovery_seconds, between).goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What failures leave of the time, with checkpoints at the best intervals: Young's and Daly's, None for never."""

    first_order: float | None
    interval: float | None
    goodput: float | None


def _kept(step_seconds: float, saving_seconds: float, recovery_seconds: float, between: float) -> _Kept:
    first_order = resilience.young_daly_interval_seconds(saving_seconds, between)
    interval = resilience.daly_interval_seconds(saving_seconds, between)
    return _Kept(
        first_order=first_order if math.isfinite(first_order) else None,
        interval=interval if math.isfinite(interval) else None,
        goodput=resilience.goodput(
            interval_seconds=max(interval, step_seconds),
            checkpoint_seconds=saving_seconds,
            recovery_seconds=recovery_seconds,
            mean_between_failures=between,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """How often a run may fail in a day, and what the plan's checkpoints leave of it then; None where nothing says."""

    failures_per_day_low: float | None = None
    failures_per_day_high: float | None = None
    goodput_low: float | None = None
    goodput_high: float | None = None


def _bounds(
    given: Resilience, gpus: int, step_seconds: float, saving_seconds: float, recovery_seconds: float, between: float
) -> _Bounds:
    """Return the run at the least and the most that its GPUs may fail, with checkpoints as often as planned."""
    interval = resilience.failure_interval(given)
    if interval is None:
        return _Bounds()

    def kept(rate: float) -> float:
        return resilience.goodput(
            interval_seconds=max(resilience.daly_interval_seconds(saving_seconds, between), step_seconds),
            checkpoint_seconds=saving_seconds,
            recovery_seconds=recovery_seconds,
            mean_between_failures=resilience.mean_seconds_between_failures(gpus, rate),
        )

    low, high = interval
    return _Bounds(
        failures_per_day_low=resilience.failures_per_day(gpus, low),
        failures_per_day_high=resilience.failures_per_day(gpus, high),
        goodput_low=kept(high),
        goodput_high=kept(low),
    )


def spare_nodes_of(question: TrainingQuestion, gpus: int) -> SpareNodes | None:
    """Return the spare nodes for the target availability; None where none was asked for."""
    given = question.resilience
    if given.target_availability is None or given.repair_seconds is None:
        return None
    node = min(question.hardware.gpus_per_node, gpus)
    nodes = -(-gpus // node)
    per_second = resilience.failures_per_day(node, given.gpu_failures_per_month) / SECONDS_PER_DAY
    found = resilience.spare_nodes(
        nodes,
        node_failures_per_second=per_second,
        repair_seconds=given.repair_seconds,
        target_availability=given.target_availability,
    )
    return SpareNodes(
        nodes=nodes,
        spares=None if found is None else found[0],
        availability=None if found is None else found[1],
        target_availability=given.target_availability,
        repair_seconds=given.repair_seconds,
    )
