"""Several kinds of GPUs for one job: each planned, and the objective ranks them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from plimsoll.planners.ground.errors import InvalidQuestion, PlanningStopped, PlimsollError
from plimsoll.planners.ground.stopping import ShouldStop, never
from plimsoll.planners.ground.units import SECONDS_PER_HOUR
from plimsoll.planners.memory.host_words import is_host_sure, lacking_host_bytes
from plimsoll.planners.plans import FleetEntry, TrainingAnswer
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.timing.efficiency import UNTIMED_GPU, efficiency_on
from plimsoll.planners.timing.ties import are_tied, unrelated_tie_fraction
from plimsoll.planners.training.planning import plan_training

Rank = tuple[float, ...]
Questions: TypeAlias = Sequence[TrainingQuestion]
Answers: TypeAlias = Mapping[int, TrainingAnswer]
# Entries of a rank before what the objective adds: whether it is late, and whether the host may lack memory.
_BEFORE_OBJECTIVE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """The answer on the best entry, `chosen`, with every entry under `fleet`, best first."""

    chosen: int
    answer: TrainingAnswer


def plan_fleet(questions: Sequence[TrainingQuestion], should_stop: ShouldStop = never) -> FleetAnswer:
    """Return the plan of the best entry; the questions differ in their hardware only.

    A kind of GPU that nobody timed goes after one that it beats by less than the band, and else says so.
    An entry that cannot run the job is listed with its refusal. Raises `InvalidQuestion` where the
    objective cannot rank the entries, and what `plan_training` raises on the first entry where none
    can run the job.
    """
    _check_prices(questions)
    answers: dict[int, TrainingAnswer] = {}
    refusals: dict[int, PlimsollError] = {}
    for number, question in enumerate(questions):
        try:
            answers[number] = plan_training(replace(question, compare=()), should_stop)
        except PlanningStopped:
            raise
        except PlimsollError as error:
            refusals[number] = error
    if not answers:
        raise refusals[0]
    estimated = sorted(answers, key=lambda number: (_rank(questions[number], answers[number]), number))
    order = _timed_first(estimated, questions, answers)
    entries = [_entry(number, questions[number], answers[number]) for number in order]
    refused = [_refused(number, questions[number], error) for number, error in refusals.items()]
    best = order[0]
    answer = plan_training(questions[best], should_stop) if questions[best].compare else answers[best]
    summary = answer.summary + _untimed_note(estimated, order, questions, answers)
    return FleetAnswer(chosen=best, answer=replace(answer, summary=summary, fleet=(*entries, *refused)))


def _check_prices(questions: Sequence[TrainingQuestion]) -> None:
    for number, question in enumerate(questions):
        if question.objective == "cost" and question.hardware.usd_per_gpu_hour is None:
            raise InvalidQuestion(
                "objective 'cost' ranks kinds of GPUs by their price. Give usd_per_gpu_hour for every one.",
                pointer=f"/hardware/fleet/{number}/usd_per_gpu_hour",
            )


def usd_per_token(question: TrainingQuestion, answer: TrainingAnswer) -> float | None:
    """Return what one trained token costs; None without a price."""
    price = question.hardware.usd_per_gpu_hour
    if price is None:
        return None
    return price * answer.plan.layout.gpus / SECONDS_PER_HOUR / answer.plan.step.tokens_per_second


def meets_deadline(question: TrainingQuestion, answer: TrainingAnswer) -> bool | None:
    """Return whether the run ends in time; None where no deadline was given."""
    seconds, deadline = answer.plan.run.seconds, question.deadline_seconds
    return None if seconds is None or deadline is None else seconds <= deadline


def _rank(question: TrainingQuestion, answer: TrainingAnswer) -> Rank:
    """Return what to compare entries by, the lesser the better: what fits first, then the objective."""
    plan = answer.plan
    seconds, gpus = plan.step.seconds, float(plan.layout.gpus)
    if not answer.fits:
        # Nothing else counts of a plan that does not fit: the one that lacks the least comes first.
        return (2.0, float(max(-plan.memory.margin_bytes, lacking_host_bytes(plan.memory))))
    late = 1.0 if meets_deadline(question, answer) is False else 0.0
    is_tight = float(answer.verdict == "tight")
    dollars = usd_per_token(question, answer)
    price = math.inf if dollars is None else dollars
    by_objective: dict[str, Rank] = {
        "throughput": (is_tight, seconds, gpus),
        "cost": (is_tight, price, seconds),
        "fewest_gpus": (gpus, is_tight, seconds),
        "deadline": (seconds, gpus) if late else (is_tight, price, gpus, seconds),
    }
    return (late, float(not is_host_sure(plan.memory)), *by_objective[question.objective])


def _timed_first(order: Sequence[int], questions: Questions, answers: Answers) -> list[int]:
    """Return the order with the first kind of GPU that was timed before an untimed one that is ahead by a tie."""
    first = order[0]
    if not _is_untimed(answers[first]):
        return list(order)
    for number in order[1:]:
        if not _is_untimed(answers[number]) and _is_tied(first, number, questions, answers):
            return [number, *(other for other in order if other != number)]
    return list(order)


def _is_untimed(answer: TrainingAnswer) -> bool:
    return answer.plan.step.timed_runs == UNTIMED_GPU


def _is_tied(first: int, other: int, questions: Questions, answers: Answers) -> bool:
    """Return whether two entries differ in what the objective makes of their steps alone, and by less than the band."""
    ranks = [_rank(questions[number], answers[number]) for number in (first, other)]
    place = _place_of_steps(questions[first], answers[first])
    if place is None or ranks[0][:place] != ranks[1][:place] or math.isinf(ranks[0][place]):
        return False
    return are_tied(ranks[0][place], ranks[1][place], _tie_between(first, other, questions, answers))


def _tie_between(first: int, other: int, questions: Questions, answers: Answers) -> float:
    on = (efficiency_on(answers[number].plan.layout.framework, questions[number].hardware) for number in (first, other))
    return unrelated_tie_fraction(*on, experts=bool(questions[first].model.experts_per_token))


def _place_of_steps(question: TrainingQuestion, answer: TrainingAnswer) -> int | None:
    """Return where a rank has what the step decides: its time, or its price. The fewest GPUs are counted by memory."""
    if not answer.fits or question.objective == "fewest_gpus":
        return None
    is_late = question.objective == "deadline" and meets_deadline(question, answer) is False
    return _BEFORE_OBJECTIVE if is_late else _BEFORE_OBJECTIVE + 1


def _untimed_note(estimated: Sequence[int], order: Sequence[int], questions: Questions, answers: Answers) -> str:
    """Return that the best entry by the estimate was never timed, and what was made of it; else nothing."""
    first = estimated[0]
    if not (answers[first].fits and _is_untimed(answers[first])):
        return ""
    name = questions[first].hardware.gpu.name
    if order[0] != first:
        tie = _tie_between(first, order[0], questions, answers)
        return (
            f" {name} is ahead by the estimate, but no timed run on it was fitted, and a lead below {tie:.0%} is "
            "within the band: what was timed goes first."
        )
    return f" {name} goes first by an estimate alone: no timed run on it was fitted."


def _entry(number: int, question: TrainingQuestion, answer: TrainingAnswer) -> FleetEntry:
    plan = answer.plan
    return FleetEntry(
        entry=number,
        gpu=question.hardware.gpu.id,
        gpus=plan.layout.gpus,
        fits=answer.fits,
        verdict=answer.verdict,
        layout=plan.layout,
        peak_bytes=plan.memory.peak_bytes,
        margin_bytes=plan.memory.margin_bytes,
        step_seconds=plan.step.seconds,
        tokens_per_second=plan.step.tokens_per_second,
        run_seconds=plan.run.seconds,
        usd_per_token=usd_per_token(question, answer),
        cost_usd=plan.run.cost_usd,
        meets_deadline=meets_deadline(question, answer),
        refusal=None,
        timed_runs=plan.step.timed_runs,
    )


def _refused(number: int, question: TrainingQuestion, error: PlimsollError) -> FleetEntry:
    return FleetEntry(
        entry=number,
        gpu=question.hardware.gpu.id,
        gpus=None,
        fits=False,
        verdict="no",
        layout=None,
        peak_bytes=None,
        margin_bytes=None,
        step_seconds=None,
        tokens_per_second=None,
        run_seconds=None,
        usd_per_token=None,
        cost_usd=None,
        meets_deadline=None,
        refusal=error.detail,
    )
