"""Which stacks can run a job, and what it asks for that none of them has together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.jobs.abilities import ABILITIES
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.stack import LAYOUT_ABILITIES
from plimsoll.planners.stacks.profile import Profile, profiles_to_search, running_profile, textbook


def jobs_of(question: TrainingQuestion) -> list[Job]:
    """Return the job through every framework that may run it; raise where none can."""
    profiles = profiles_to_search(question.framework)
    able = [profile for profile in profiles if not problems(question, profile)]
    if not able:
        raise _unable(question, profiles)
    return [training_job(question, profile) for profile in able]


def problems(question: TrainingQuestion, profile: Profile) -> dict[str, str]:
    """Return what a framework lacks of all that the job asks for, in sentences by the field that asks."""
    kernels = question.kernels if question.kernels in profile.kernel_choices else None
    running = running_profile(profile, kernels, question.optimizer)
    asked = (
        *((ability, profile) for ability in ABILITIES),
        *((each.ability, running) for each in LAYOUT_ABILITIES),
    )
    found = ((ability.pointer, ability.problem(question, by)) for ability, by in asked)
    return {pointer: problem for pointer, problem in found if problem is not None}


def _unable(question: TrainingQuestion, profiles: Sequence[Profile]) -> PlimsollError:
    """Return why none of the frameworks can run the job, and which others can."""
    stacks = profiles_to_search("any")
    others = [profile.name for profile in stacks if not problems(question, profile)]
    if question.framework != "any":
        pointer, detail = next(iter(problems(question, profiles[0]).items()))
        instead = f"The job can run on {listed(others)}." if others else what_none_has(question, stacks)
        return InvalidQuestion(f"{detail} {instead}", pointer=pointer)
    sums = textbook()
    planned = "" if problems(question, sums) else f" Framework {sums.name}, {sums.title}, plans it."
    pointer = _missed_by_all(question, profiles)[0]
    return InvalidQuestion(f"{what_none_has(question, profiles)}{planned}", pointer=pointer)


def what_none_has(question: TrainingQuestion, profiles: Sequence[Profile], *, subject: str = "No stack") -> str:
    """Return the least that none of the frameworks has together, and who has each part of it, in a sentence."""
    missed = [problems(question, profile) for profile in profiles]
    nobodys = [field for field in missed[0] if all(field in lacking for lacking in missed)]
    if nobodys:
        return f"{subject} has {' or '.join(_asked(question, field, profiles) for field in nobodys)}."
    parts = [
        f"{_asked(question, field, profiles)} ({listed(_having(question, field, profiles))})"
        for field in _missed_by_all(question, profiles)
    ]
    return f"{subject} combines {parts[0]} with {listed(parts[1:])}."


def _having(question: TrainingQuestion, field: str, profiles: Sequence[Profile]) -> list[str]:
    return [profile.name for profile in profiles if field not in problems(question, profile)]


def _missed_by_all(question: TrainingQuestion, profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Return the fewest fields of which every framework lacks one."""
    missed = [problems(question, profile) for profile in profiles]
    fields = list(dict.fromkeys(field for lacking in missed for field in lacking))
    return next(some for some in _ever_more_of(fields) if all(any(field in each for field in some) for each in missed))


def _ever_more_of(fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for number in range(1, len(fields) + 1):
        yield from itertools.combinations(fields, number)


def _asked(question: TrainingQuestion, pointer: str, profiles: Sequence[Profile]) -> str:
    """Return a field of the question with what it asks for, in words."""
    every = (*ABILITIES, *(each.ability for each in LAYOUT_ABILITIES))
    return next(ability for ability in every if ability.pointer == pointer).told(question, profiles)
