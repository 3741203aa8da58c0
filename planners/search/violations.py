"""The rules that a question breaks, each with its numbers and the field at fault.

Degrees that a client fixed may break some whatever completes them, and a stack may lack what they ask for; neither
needs a search. The others are judged on the layouts that could be formed: a rule is broken where all of them break it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plimsoll.planners.ground.errors import BrokenRule, ImpossibleLayout
from plimsoll.planners.jobs.abilities import why_unsupported
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.layouts.candidates import Candidates, IntArray, candidates_from_rows
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.axes import candidate_grid
from plimsoll.planners.search.gpu_counts import fixed_product, gpu_counts
from plimsoll.planners.search.rules.every import RULES, RULES_OF_FIXED, RULES_OF_REQUESTS
from plimsoll.planners.search.rules.fields import DEGREES, named_fields
from plimsoll.planners.search.rules.request import POSITIVE_DEGREES, check_values
from plimsoll.planners.search.rules.rule import Rule, Violation
from plimsoll.planners.search.rules.stack import LAYOUT_ABILITIES, STACK_IS_ABLE
from plimsoll.planners.search.ways_out import has_layout
from plimsoll.planners.stacks.profile import Profile, profiles_to_search, running_profile

# Where the named degrees multiply to no number of GPUs there are, layouts are formed on these multiples of them.
MULTIPLES_OF_NAMED = (1, 2, 4, 8)


def check_fixed(question: TrainingQuestion) -> None:
    """Raise `ImpossibleLayout` with every contradiction where a fixed layout can exist on no framework."""
    check_values(question)
    violations = fixed_violations(question)
    if violations:
        raise impossible(violations)


def impossible(violations: Sequence[Violation]) -> ImpossibleLayout:
    """Return the error of broken rules: the first one's words and field, and all of them beside."""
    first = violations[0]
    return ImpossibleLayout(
        first.detail,
        rule=first.rule,
        pointer=first.pointer,
        broken=tuple(BrokenRule(rule=each.rule, detail=each.detail, pointer=each.pointer) for each in violations),
    )


def contradictions(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return what the fixed degrees break whatever completes them; empty where a search may find something.

    One contradiction is enough for no layout to exist; where there is any, all
    rules are looked through, so that a client mends them all at once.
    """
    violations = (*fixed_violations(question), *_lacking(question, _able(question)))
    return every_broken_rule(question) if violations else ()


def every_broken_rule(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return every rule that all layouts of the question break, on the framework that comes nearest to them."""
    fixed = fixed_violations(question)
    if any(violation.rule == POSITIVE_DEGREES.name for violation in fixed):
        return fixed
    able = _able(question)
    lacking = _lacking(question, able)
    capable = [profile for profile in able if not stack_violations(question, profile)] or able
    formed = _broken_by_formed(question, [training_job(question, profile) for profile in capable])
    said = {violation.rule for violation in (*fixed, *lacking)}
    return (*fixed, *lacking, *(violation for violation in formed if violation.rule not in said))


def fixed_violations(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return every rule that the fixed degrees break whatever the others are."""
    works = functools.partial(_works, question, profiles_to_search(question.framework, question.framework_version))
    return (
        *(violation for rule in RULES_OF_REQUESTS for violation in rule.violations(question, works)),
        *_of_degrees(question),
    )


def _works(question: TrainingQuestion, profiles: Sequence[Profile], changes: Mapping[str, Any]) -> bool:
    """Return whether a request so changed has, on one of the frameworks, a layout that obeys every rule."""
    changed = replace(question, layout=replace(question.layout, **changes))
    if any(rule.violations(changed) for rule in RULES_OF_REQUESTS) or _of_degrees(changed):
        return False
    able = (each for each in profiles if not why_unsupported(changed, each) and not stack_violations(changed, each))
    return any(has_layout(changed, training_job(changed, profile)) for profile in able)


def _of_degrees(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return what the fixed degrees break of the rules of layouts."""
    named, least = named_fields(question), _least(question)
    details = ((rule, rule.fixed_detail(least, question, named)) for rule in RULES_OF_FIXED)
    return tuple(_violation(rule, detail, named) for rule, detail in details if detail is not None)


def _least(question: TrainingQuestion) -> Candidates:
    """Return the layout of the fixed degrees and no other parallelism."""
    fixed = {name: getattr(question.layout, name) for name in (*DEGREES, "shard_group")}
    fixed["micro_batch_size"] = question.micro_batch_size
    # What is below 1 is a rule of its own.
    row = {name: max(value, 1) for name, value in fixed.items() if value is not None}
    return candidates_from_rows([{**row, "sequence_parallel": bool(question.layout.sequence_parallel)}])


def _violation(rule: Rule, detail: str, named: frozenset[str]) -> Violation:
    return Violation(rule=rule.name, field=rule.field_at_fault(named), detail=detail)


def stack_violations(question: TrainingQuestion, profile: Profile) -> tuple[Violation, ...]:
    """Return every fixed choice that a framework cannot have."""
    return tuple(
        Violation(rule=STACK_IS_ABLE.name, field=each.ability.field, detail=problem)
        for each in LAYOUT_ABILITIES
        if (problem := each.ability.problem(question, profile)) is not None
    )


def _able(question: TrainingQuestion) -> list[Profile]:
    """Return the frameworks that may run the job, as they do with its kernels and optimizer."""
    able = (
        profile
        for profile in profiles_to_search(question.framework, question.framework_version)
        if why_unsupported(question, profile) is None
    )
    return [running_profile(profile, question.kernels, question.optimizer) for profile in able]


def _lacking(question: TrainingQuestion, able: Sequence[Profile]) -> tuple[Violation, ...]:
    """Return what the framework, or of several the one that lacks least, cannot do; empty where one can do all."""
    return min((stack_violations(question, profile) for profile in able), key=len, default=())


def _broken_by_formed(question: TrainingQuestion, jobs: Sequence[Job]) -> tuple[Violation, ...]:
    """Return the rules that every layout of the question breaks, in their order.

    Where no rule alone excludes everything, those that exclude anything are
    returned, each with how many of the layouts break it.
    """
    formed = [(job, layouts) for job in jobs if len(layouts := _formed(question, job))]
    if not formed:
        return ()
    named, total = named_fields(question), sum(len(layouts) for _, layouts in formed)
    counts = {rule.name: sum(_breaking(rule, job, layouts) for job, layouts in formed) for rule in RULES}
    job, layouts = formed[0]
    works = functools.partial(_works, question, [job.profile])
    details = {rule.name: rule.detail(layouts, job, works) for rule in RULES if counts[rule.name] == total} or {
        rule.name: f"{counts[rule.name]:,} of {total:,} possible layouts break this rule: {_reason(rule, job, layouts)}"
        for rule in RULES
        if counts[rule.name]
    }
    return tuple(_violation(rule, details[rule.name], named) for rule in RULES if rule.name in details)


def _reason(rule: Rule, job: Job, layouts: Candidates) -> str:
    """Return a rule that some layouts break; one that names no field, with what they break of it."""
    broken = np.flatnonzero(np.broadcast_to(rule.broken(layouts, job), layouts.shape))
    return f"{rule.reason}." if rule.reads or not broken.size else rule.detail(layouts.take(broken), job)


def _formed(question: TrainingQuestion, job: Job) -> Candidates:
    """Return the layouts of the question, on numbers of GPUs that its degrees can multiply to."""
    tried: list[IntArray] = [] if question.hardware.gpus.is_free else gpu_counts(question)
    for gpus in (*tried, fixed_product(question) * np.array(MULTIPLES_OF_NAMED)):
        layouts = candidate_grid(question, job, gpus).every()
        if len(layouts):
            break
    return layouts


def _breaking(rule: Rule, job: Job, layouts: Candidates) -> int:
    return int(np.count_nonzero(np.broadcast_to(rule.broken(layouts, job), layouts.shape)))
