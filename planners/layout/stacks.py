"""Which training stacks a search looked through, and why it left the others out, in words."""

from __future__ import annotations

from collections.abc import Sequence

from planners.layout.fixed import framework_violations
from planners.memory.job import why_unsupported
from planners.memory.profile import Profile, load_profile, profiles_to_search
from planners.plans import LeftOutStack, SearchedStacks
from planners.questions import TrainingQuestion


def stacks_of(question: TrainingQuestion, searched: Sequence[str]) -> SearchedStacks:
    """Return the stacks that were searched, by name, and with `any` why each of the others was not."""
    profiles = profiles_to_search(question.framework)
    return SearchedStacks(
        searched=tuple(searched),
        unmeasured=tuple(name for name in searched if not load_profile(name).measured),
        left_out=tuple(
            LeftOutStack(framework=profile.name, reason=_why_left_out(question, profile))
            for profile in profiles
            if profile.name not in searched
        ),
    )


def stack_notes(question: TrainingQuestion, stacks: SearchedStacks) -> tuple[str, ...]:
    """Return the sentence that names the stacks which were searched; nothing where the client named one."""
    if question.framework != "any":
        return ()
    sentence = f"Searched {_listed(stacks.searched)}."
    unneeded = [each.framework for each in stacks.left_out if each.reason == NOT_NEEDED]
    unable = [each.framework for each in stacks.left_out if each.reason != NOT_NEEDED]
    if stacks.unmeasured:
        verb = "is" if len(stacks.unmeasured) == 1 else "are"
        sentence += f" {_listed(stacks.unmeasured)} {verb} planned without measurements: {_shortfall(question)}."
    if unneeded:
        sentence += (
            f" Not searched, because no run of them is on record and a measured stack has room: {_listed(unneeded)}."
        )
    if unable:
        sentence += f" Cannot run this job: {_listed(unable)}."
    return (sentence,)


def unmeasured_note(question: TrainingQuestion, framework: str) -> str:
    """Return the sentence of a summary that says that nobody measured the stack which `any` chose; else nothing."""
    if question.framework != "any" or load_profile(framework).measured:
        return ""
    return f" No measured run of {framework} is on record; {_shortfall(question)}."


NOT_NEEDED = "No run of it is on record, and a measured stack has room."


def _shortfall(question: TrainingQuestion) -> str:
    """Return what the measured stacks lack where others are searched beside them (`best.Best.is_enough`)."""
    in_time = " and meets the deadline" if question.objective == "deadline" else ""
    return f"no measured stack fits this job with room on the GPUs{in_time}"


def _why_left_out(question: TrainingQuestion, profile: Profile) -> str:
    problem = why_unsupported(question, profile)
    if problem is not None:
        return problem.detail
    violations = framework_violations(question, load_profile(profile.name, question.kernels))
    return violations[0].detail if violations else NOT_NEEDED


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
