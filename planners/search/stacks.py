"""Which training stacks a search looked through, and why it left the others out, in words."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.ground.figures import listed
from plimsoll.planners.plans import LeftOutStack, SearchedStacks
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.able import problems_of_each, what_none_has
from plimsoll.planners.stacks.profile import load_profile, profiles_to_search
from plimsoll.planners.timing.efficiency import efficiency_on


def stacks_of(question: TrainingQuestion, searched: Sequence[str]) -> SearchedStacks:
    """Return the stacks that were searched, by name, and with `any` why each of the others was not."""
    others = [
        profile
        for profile in profiles_to_search(question.framework, question.framework_version)
        if profile.name not in searched
    ]
    return SearchedStacks(
        searched=tuple(searched),
        unmeasured=tuple(name for name in searched if not load_profile(name).measured),
        left_out=tuple(
            LeftOutStack(framework=profile.name, reason=next(iter(lacking.values()), NOT_NEEDED))
            for profile, lacking in zip(others, problems_of_each(question, others), strict=True)
        ),
    )


def stack_notes(question: TrainingQuestion, stacks: SearchedStacks, *, measured_on_host: bool) -> tuple[str, ...]:
    """Return the sentence that names the stacks which were searched; nothing where the client named one.

    `measured_on_host` says that the best layout of the measured ones keeps states on the host.
    """
    if question.framework != "any":
        return ()
    sentence = f"The search tried {listed(stacks.searched)}."
    unneeded = [each.framework for each in stacks.left_out if each.reason == NOT_NEEDED]
    unable = [each.framework for each in stacks.left_out if each.reason != NOT_NEEDED]
    if stacks.unmeasured:
        why = _why_unmeasured(question, stacks, measured_on_host=measured_on_host)
        sentence += f" No measured run of {listed(stacks.unmeasured, 'or')} is on record. {why}"
    if unneeded:
        sentence += (
            f" It left out {listed(unneeded)}: no measured run of {'it' if len(unneeded) == 1 else 'them'} is on "
            "record, and a measured stack has room."
        )
    if unable:
        sentence += f" {listed(unable)} cannot run this job; stacks.left_out says why."
    return (sentence,)


def unmeasured_note(
    question: TrainingQuestion, framework: str, stacks: SearchedStacks, *, measured_on_host: bool
) -> str:
    """Return the sentences of a summary on a stack which `any` chose and nobody measured; of a measured one nothing."""
    if question.framework != "any" or load_profile(framework).measured:
        return ""
    why = _why_unmeasured(question, stacks, measured_on_host=measured_on_host)
    return f" No measured run of {framework} is on record. {why}"


def untimed_pair_note(question: TrainingQuestion, framework: str, stacks: SearchedStacks) -> str:
    """Return the sentence on a stack which `any` chose and nobody timed on the GPU, where others were."""
    timed = {name: efficiency_on(name, question.hardware).timed_runs for name in stacks.searched}
    on_gpu = [name for name, runs in timed.items() if runs == "stack_on_gpu"]
    is_pair_untimed = timed[framework] == "other_stacks_on_gpu" and load_profile(framework).measured
    if question.framework != "any" or not is_pair_untimed or not on_gpu:
        return ""
    return (
        f" No timed run of {framework} on this GPU was fitted; those on record are of {listed(on_gpu)}, which the "
        "estimate puts behind it."
    )


def _why_unmeasured(question: TrainingQuestion, stacks: SearchedStacks, *, measured_on_host: bool) -> str:
    """Return why others than measured stacks were searched, in a sentence: what those lack, or where their room is."""
    if set(stacks.searched) == set(stacks.unmeasured):
        measured = [
            profile
            for profile in profiles_to_search(question.framework, question.framework_version)
            if profile.measured
        ]
        return what_none_has(question, measured, subject="No measured stack")
    if measured_on_host:
        return "The best layout of the measured stacks that can run this job keeps states in host memory."
    in_time = " and meets the deadline" if question.objective == "deadline" else ""
    return f"No measured stack that can run this job has a layout with room on the GPUs{in_time}."


NOT_NEEDED = "No run of it is on record, and a measured stack has room."
