"""Why a layout that a client names is not the plan: rule by rule, byte by byte, second by second.

A named layout may be partial: the best search inside it completes it. It is then
excluded by rules, does not fit, or is set beside the plan in the order in which
the search prefers layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll.planners.ground.errors import ImpossibleLayout, PlanningStopped, PlimsollError
from plimsoll.planners.ground.stopping import ShouldStop, never
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.plans import Comparison, Reason
from plimsoll.planners.questions import NamedLayout, TrainingQuestion
from plimsoll.planners.search.causes import Planned, judgement, planned_of
from plimsoll.planners.search.pool import Pool
from plimsoll.planners.search.rules.fields import TRAINING_FIELDS
from plimsoll.planners.search.rules.request import check_values
from plimsoll.planners.search.rules.rule import Violation
from plimsoll.planners.search.search import search
from plimsoll.planners.search.violations import contradictions, every_broken_rule

JobsOf = Callable[[TrainingQuestion], list[Job]]


def comparisons(
    question: TrainingQuestion, pool: Pool, index: int, jobs_of: JobsOf, should_stop: ShouldStop = never
) -> tuple[Comparison, ...]:
    """Return why each layout that the question names lost to the plan, layout `index` of `pool`.

    `jobs_of` returns a question's job through every framework that may run it.
    Raises `PlanningStopped` once `should_stop` says so.
    """
    if not question.compare:
        return ()
    chosen = planned_of(question, pool, index)
    return tuple(_compared(question, number, chosen, jobs_of, should_stop) for number in range(len(question.compare)))


def _compared(
    question: TrainingQuestion, number: int, chosen: Planned, jobs_of: JobsOf, should_stop: ShouldStop
) -> Comparison:
    asked = _asked(question, question.compare[number])

    def excluded(violations: tuple[Violation, ...]) -> Comparison:
        return _excluded(tuple(_reason(number, each.rule, each.field, each.detail) for each in violations))

    try:
        check_values(asked)
        broken = contradictions(asked)
        if broken:
            return excluded(broken)
        found = search(asked, jobs_of(asked), should_stop)
    except ImpossibleLayout:
        return excluded(every_broken_rule(asked))
    except PlanningStopped:
        raise
    except PlimsollError as error:
        return _excluded((_reason(number, error.code, error.pointer.rsplit("/", 1)[-1], error.detail),))
    planned = planned_of(asked, found.pools[found.chosen[0]], found.chosen[1])
    outcome, causes = judgement(question, planned, chosen)
    return Comparison(
        layout=planned.layout,
        outcome=outcome,
        verdict=planned.verdict,
        reasons=tuple(_reason(number, rule, field, detail) for rule, field, detail in causes),
        peak_bytes=planned.memory.peak_bytes,
        margin_bytes=planned.memory.margin_bytes,
        step_seconds=planned.step.seconds,
        step_parts=planned.step.parts,
    )


def _asked(question: TrainingQuestion, named: NamedLayout) -> TrainingQuestion:
    """Return the question in which only the named layout is searched."""
    given = {name: value for name in (*TRAINING_FIELDS, "framework") if (value := getattr(named, name)) is not None}
    if named.framework_version is not None or given.get("framework", question.framework) != question.framework:
        given["framework_version"] = named.framework_version
    if "activation_offload" in given:
        given["offload_modules"], given["offload_layers"] = named.offload_modules, named.offload_layers
    return replace(question, layout=named.layout, compare=(), **given)


def _excluded(reasons: tuple[Reason, ...]) -> Comparison:
    return Comparison(
        layout=None,
        outcome="excluded",
        verdict=None,
        reasons=reasons,
        peak_bytes=None,
        margin_bytes=None,
        step_seconds=None,
        step_parts=None,
    )


def _reason(number: int, rule: str, field: str, detail: str) -> Reason:
    return Reason(rule=rule, detail=detail, pointer=f"/compare/{number}/{field}" if field else f"/compare/{number}")
