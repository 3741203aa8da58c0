"""Launch files of a training plan: what a person types, or a program reads, to run it.

A file says what is true of the plan; where a program has no option for what was
planned, the file is not made, and the reasons are.
"""

from __future__ import annotations

import functools

from plimsoll.planners.derived import Derived
from plimsoll.service.launch.files import Content, LaunchFiles
from plimsoll.service.launch.training import Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.stack import find_stack


def training_artifacts(launch: TrainingLaunch, derived: Derived | None = None) -> LaunchFiles:
    """Return every launch file of a plan, or why it cannot be written; `derived` writes each apart."""
    files: dict[str, Content] = {}
    missing: dict[str, tuple[str, ...]] = {}
    derived = derived or Derived()
    for target in find_stack(launch.layout.framework).targets:
        written = functools.partial(_write, target, launch, files, missing)
        derived.part(f"artifacts.{target.name}", written, otherwise=None)
    return LaunchFiles(files=files, missing=missing, omitted=derived.omitted)


def _write(
    target: Target, launch: TrainingLaunch, files: dict[str, Content], missing: dict[str, tuple[str, ...]]
) -> None:
    """Add the target's file, or the reasons why there is none, where it is for such plans."""
    if not target.is_for(launch):
        return
    reasons = (*target.why_not(launch), *_left_to_scripts(target, launch))
    if reasons:
        missing[target.name] = reasons
    else:
        files[target.name] = target.write(launch)


def _left_to_scripts(target: Target, launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan only a training script can do, for the targets that are no mere starters of one."""
    question = launch.question
    modules = launch.layout.recompute_modules
    return given_reasons(
        (
            question.gradient_compression != "none" and not target.is_starter,
            f"Gradients are compressed ({question.gradient_compression}) by the training script or its optimizer.",
        ),
        (
            bool(modules) and not (target.is_starter or target.names_recomputed_modules),
            f"The recompute of {', '.join(modules)} alone is not written for {target.name}.",
        ),
    )
