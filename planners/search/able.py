"""Which stacks can run a job, and what it asks for that none of them has together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.jobs.abilities import ABILITIES, Ability
from plimsoll.planners.jobs.job import Job, training_job
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.stack import LAYOUT_ABILITIES
from plimsoll.planners.search.ways_out import has_layout
from plimsoll.planners.stacks.profile import Profile, profiles_to_search, running_profile, textbook


def jobs_of(question: TrainingQuestion) -> list[Job]:
    """Return the job through every framework that may run it; raise where none can."""
    profiles, asked = profiles_to_search(question.framework, question.framework_version), _asked_of(question)
    able = [profile for profile in profiles if not _problems(question, profile, asked)]
    if not able:
        raise _unable(question, profiles)
    return [training_job(question, profile) for profile in able]


def problems(question: TrainingQuestion, profile: Profile) -> dict[str, str]:
    """Return what a framework lacks of all that the job asks for, in sentences by the field that asks."""
    return _problems(question, profile, _asked_of(question))


def problems_of_each(question: TrainingQuestion, profiles: Sequence[Profile]) -> Iterator[dict[str, str]]:
    """Yield the same of each of several frameworks."""
    asked = _asked_of(question)
    return (_problems(question, profile, asked) for profile in profiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a question asks of an ability; of stacks as they run its job, where layouts ask for that too."""

    ability: Ability
    wanted: object
    of_running: bool


def _asked_of(question: TrainingQuestion) -> tuple[_Asked, ...]:
    """Return all that a question asks of any stack."""
    every = (*((ability, False) for ability in ABILITIES), *((each.ability, True) for each in LAYOUT_ABILITIES))
    return tuple(
        _Asked(ability=ability, wanted=wanted, of_running=of_running)
        for ability, of_running in every
        if (wanted := ability.asked(question)) is not None
    )


def _problems(question: TrainingQuestion, profile: Profile, asked: Sequence[_Asked]) -> dict[str, str]:
    kernels = question.kernels if question.kernels in profile.kernel_choices else None
    running = running_profile(profile, kernels, question.optimizer)
    every = ((each.ability, running if each.of_running else profile, each.wanted) for each in asked)
    return {
        ability.pointer: ability.words(question, by) for ability, by, wanted in every if not ability.can(by, wanted)
    }


def _unable(question: TrainingQuestion, profiles: Sequence[Profile]) -> PlimsollError:
    """Return why none of the frameworks can run the job, and which others can."""
    stacks = profiles_to_search("any")
    every = zip(stacks, problems_of_each(question, stacks), strict=True)
    others = [profile for profile, lacking in every if not lacking]
    if question.framework != "any":
        pointer, detail = next(iter(problems(question, profiles[0]).items()))
        instead = _instead(question, others) if others else what_none_has(question, stacks)
        return InvalidQuestion(f"{detail} {instead}", pointer=pointer)
    sums = textbook()
    planned = "" if problems(question, sums) else f" Framework {sums.name}, {sums.title}, plans it."
    pointer = _missed_by_all(question, profiles)[0]
    return InvalidQuestion(f"{what_none_has(question, profiles)}{planned}", pointer=pointer)


def _instead(question: TrainingQuestion, others: Sequence[Profile]) -> str:
    """Return which stacks run the job, of those that are able to; where none has a layout of it, who would be."""
    running = [profile.name for profile in others if has_layout(question, training_job(question, profile))]
    if running:
        return f"The job can run on {listed(running)}."
    return f"{listed([profile.name for profile in others])} can, but not in any layout of this request."


def what_none_has(question: TrainingQuestion, profiles: Sequence[Profile], *, subject: str = "No stack") -> str:
    """Return the least that none of the frameworks has together, and who has each part of it, in a sentence."""
    missed = list(problems_of_each(question, profiles))
    nobodys = [field for field in missed[0] if all(field in lacking for lacking in missed)]
    if nobodys:
        return f"{subject} has {' or '.join(_asked(question, field, profiles) for field in nobodys)}."
    parts = [
        f"{_asked(question, field, profiles)} ({listed(_having(question, field, profiles))})"
        for field in _missed_by_all(question, profiles)
    ]
    return f"{subject} combines {parts[0]} with {listed(parts[1:])}."


def _having(question: TrainingQuestion, field: str, profiles: Sequence[Profile]) -> list[str]:
    every = zip(profiles, problems_of_each(question, profiles), strict=True)
    return [profile.name for profile, lacking in every if field not in lacking]


def _missed_by_all(question: TrainingQuestion, profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Return the fewest fields of which every framework lacks one."""
    missed = list(problems_of_each(question, profiles))
    fields = list(dict.fromkeys(field for lacking in missed for field in lacking))
    return next(some for some in _ever_more_of(fields) if all(any(field in each for field in some) for each in missed))


def _ever_more_of(fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for number in range(1, len(fields) + 1):
        yield from itertools.combinations(fields, number)


def _asked(question: TrainingQuestion, pointer: str, profiles: Sequence[Profile]) -> str:
    """Return a field of the question with what it asks for, in words."""
    every = (*ABILITIES, *(each.ability for each in LAYOUT_ABILITIES))
    return next(ability for ability in every if ability.pointer == pointer).told(question, profiles)
