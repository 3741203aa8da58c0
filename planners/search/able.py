"""Which stacks can run a job, and what it asks for that none of them has together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.jobs.job import Job, training_job, unsupported
from plimsoll.planners.questions import Recompute, TrainingQuestion
from plimsoll.planners.search.fixed import framework_violations
from plimsoll.planners.search.violations import TRAINING_FIELDS
from plimsoll.planners.stacks.model_code import in_words, traits_of
from plimsoll.planners.stacks.profile import Profile, load_profile, profiles_to_search, textbook

MODEL_CODE = "/framework"
ORDINALS = {1: "single", 2: "2nd", 3: "3rd"}


def jobs_of(question: TrainingQuestion) -> list[Job]:
    """Return the job through every framework that may run it; raise where none can."""
    profiles = profiles_to_search(question.framework)
    able = [profile for profile in profiles if not problems(question, profile)]
    if not able:
        raise _unable(question, profiles)
    return [training_job(question, load_profile(profile.name, question.kernels)) for profile in able]


def problems(question: TrainingQuestion, profile: Profile) -> dict[str, str]:
    """Return what a framework lacks of all that the job asks for, in sentences by the field that asks."""
    lacking = {problem.pointer: problem.detail for problem in unsupported(question, profile)}
    kernels = question.kernels if question.kernels in profile.kernel_choices else None
    running = load_profile(profile.name, kernels)
    return lacking | {violation.pointer: violation.detail for violation in framework_violations(question, running)}


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
    if pointer == MODEL_CODE:
        lacked = frozenset(trait for profile in profiles for trait in profile.models.lacks)
        return f"code for {in_words(traits_of(question.model) & lacked)}"
    if pointer == "/training/companions":
        return "models beside the one that learns"
    if pointer == "/training/evaluation/keeps_logits":
        return "an evaluation that keeps logits"
    field = pointer.rpartition("/")[2]
    part = question if pointer.startswith("/training/") or field in TRAINING_FIELDS else question.layout
    value = getattr(part, field)
    if isinstance(value, Recompute):
        return f"recompute {_recompute(value)}"
    return f"{field} {str(value).lower() if isinstance(value, bool) else value}"


def _recompute(asked: Recompute) -> str:
    if asked.full_layers is not None:
        return f"of {asked.full_layers} layers"
    if asked.every is not None:
        return f"of every {ORDINALS.get(asked.every, f'{asked.every}th')} layer"
    return f"of {', '.join(asked.modules)}" if asked.modules else asked.mode
