"""All rules that keep a fixed layout from existing, on the framework that comes nearest to it."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.jobs.job import training_job, why_unsupported
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.fixed import fixed_violations, framework_violations
from plimsoll.planners.search.violations import Violation, broken_rules
from plimsoll.planners.stacks.profile import Profile, load_profile, profiles_to_search


def contradictions(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return what the fixed degrees break whatever completes them; empty where a search may find something.

    One contradiction is enough for no layout to exist; where there is any, all
    rules are looked through, so that a client mends them all at once.
    """
    violations = (*fixed_violations(question), *_lacking(question, _able(question)))
    return every_broken_rule(question) if violations else ()


def every_broken_rule(question: TrainingQuestion) -> tuple[Violation, ...]:
    """Return every rule that all layouts of the question break."""
    fixed = fixed_violations(question)
    if any(violation.rule == "degrees_are_positive" for violation in fixed):
        return fixed
    able = _able(question)
    lacking = _lacking(question, able)
    capable = [profile for profile in able if not framework_violations(question, profile)] or able
    formed = broken_rules(question, [training_job(question, profile) for profile in capable])
    said = {violation.rule for violation in (*fixed, *lacking)}
    return (*fixed, *lacking, *(violation for violation in formed if violation.rule not in said))


def _able(question: TrainingQuestion) -> list[Profile]:
    """Return the frameworks that may run the job, as they do with its kernels."""
    able = (profile for profile in profiles_to_search(question.framework) if why_unsupported(question, profile) is None)
    return [load_profile(profile.name, question.kernels) for profile in able]


def _lacking(question: TrainingQuestion, able: Sequence[Profile]) -> tuple[Violation, ...]:
    """Return what the framework, or of several the one that lacks least, cannot do; empty where one can do all."""
    return min((framework_violations(question, profile) for profile in able), key=len, default=())
