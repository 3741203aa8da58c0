"""What would help: changes to a serving question, each planned as it would be asked before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from plimsoll.planners.ground.errors import PlanningStopped, PlimsollError
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.advice.changes import Change, changes, without_pipeline
from plimsoll.planners.serving.advice.more_gpus import Goal, most_tried
from plimsoll.planners.serving.advice.relaxed import raised, relaxations
from plimsoll.planners.serving.advice.stated import stated_change
from plimsoll.planners.serving.answer import ServingAdvice
from plimsoll.planners.serving.replica import FITS
from plimsoll.planners.serving.search.candidates import Candidate
from plimsoll.planners.serving.sentences import misses

Planner = Callable[[ServingQuestion], Candidate]


def serving_advice(asked: ServingQuestion, best: Candidate, plan: Planner) -> Iterator[ServingAdvice]:
    """Yield the changes after which all that was asked is kept, each planned by `plan`; none if nothing is lacking.

    Where there are none, those come after which the model fits at least, each with what is missed then; and last of
    all what could be asked of the deployment as it is. A plan that lacks nothing but divides layers within a node is
    offered a faster division. Raises `PlanningStopped` where `plan` does.
    """

    def planned(question: ServingQuestion) -> Candidate | None:
        try:
            return plan(question)
        except PlanningStopped:
            raise
        except PlimsollError:
            # The change asks for something this model or engine cannot do: not an offer.
            return None

    def helps(changed: Candidate) -> bool:
        return changed.is_satisfying and (not best.is_satisfying or changed.replica.verdict == FITS)

    goal = Goal(plan=planned, accepts=helps, promise="do what was asked")
    if best.is_satisfying and best.replica.verdict == FITS:
        yield from _offers(without_pipeline(best, goal, weights=(best.question.weights,)), asked, goal, [])
        return
    kinds: list[str] = []
    yield from _offers(changes(best, goal, kinds), asked, goal, kinds)
    if not kinds and not best.replica.fits:
        goal = replace(goal, accepts=lambda changed: changed.replica.fits, promise="hold the model")
        yield from _offers(changes(best, goal, kinds), asked, goal, kinds)
    nothing_else = "" if kinds else f" {_nothing_else(best.question)}"
    for change in relaxations(best):
        most = raised(change, best.question, lambda question: goal.reached_by(question) is not None)
        yield from _offers([replace(most, reason=f"{change.reason}{nothing_else}")], asked, goal, [])


def _offers(tried: Iterable[Change], asked: ServingQuestion, goal: Goal, kinds: list[str]) -> Iterator[ServingAdvice]:
    """Yield the first change of each kind that reaches the goal, and note the kind."""
    for change in tried:
        if change.kind in kinds:
            continue
        found = goal.reached_by(change.question)
        if found is not None:
            kinds.append(change.kind)
            yield _advice(change, asked, found)


def _advice(change: Change, asked: ServingQuestion, found: Candidate) -> ServingAdvice:
    kv, state = found.replica.kv, found.state
    missed = "" if found.is_satisfying else f" It still misses what was asked: {'; '.join(misses(found))}."
    return ServingAdvice(
        change=stated_change(asked, change.question),
        fits=found.replica.fits,
        kv_tokens=kv.tokens,
        max_concurrency=kv.max_concurrency,
        peak_bytes=found.replica.memory.peak_bytes,
        reason=f"{change.reason}{missed}",
        verdict=found.replica.verdict,
        meets=found.is_satisfying,
        gpus=found.gpus,
        ttft_seconds=None if state is None else state.ttft_seconds,
        tpot_seconds=None if state is None else state.tpot_seconds,
        output_tokens_per_second=None if state is None else found.output_tokens_per_second,
        cost_usd_per_million_output_tokens=found.usd_per_million_tokens,
    )


def _nothing_else(question: ServingQuestion) -> str:
    """Return that no change of the deployment was found, in words that name how far was looked."""
    gpus = question.hardware.gpus
    where = "on any number of these GPUs" if gpus.is_free else f"on these GPUs, nor on up to {most_tried(question):,}"
    return f"No other settings or formats were found that do what was asked {where}."
