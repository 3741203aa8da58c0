"""Launch files of a training plan: what a person types, or a program reads, to run it.

Each program has a module and each launch file a `Target` here. A file says what
is true of the plan; where a program has no option for what was planned, the file
is not made, and the reasons are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.derived import Derived
from plimsoll.planners.plans import Omitted
from plimsoll.service.launch.dlrover import DLROVER
from plimsoll.service.launch.torchrun import RENDEZVOUS_PORT, TORCHRUN
from plimsoll.service.launch.training import Content, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.accelerate.adapters import BITSANDBYTES, PEFT
from plimsoll.service.stacks.accelerate.launch import ACCELERATE
from plimsoll.service.stacks.accelerate.trainer import TRANSFORMERS
from plimsoll.service.stacks.atorch.launch import ATORCH
from plimsoll.service.stacks.composer.launch import COMPOSER
from plimsoll.service.stacks.ddp.horovod import HOROVOD, HOROVOD_HOSTS
from plimsoll.service.stacks.deepspeed.launch import DEEPSPEED
from plimsoll.service.stacks.fsdp2.launch import TORCHTITAN
from plimsoll.service.stacks.litgpt.launch import LITGPT
from plimsoll.service.stacks.megatron.launch import MEGATRON
from plimsoll.service.stacks.megatron.paddle import PADDLE
from plimsoll.service.stacks.megatron.pai import PAI_MEGATRON
from plimsoll.service.stacks.megatron_deepspeed.launch import MEGATRON_DEEPSPEED
from plimsoll.service.stacks.nanotron.launch import NANOTRON
from plimsoll.service.stacks.torchtune.launch import TORCHTUNE

__all__ = ["RENDEZVOUS_PORT", "STARTERS", "TARGETS", "LaunchFiles", "TrainingLaunch", "training_artifacts"]

TARGETS: tuple[Target, ...] = (
    TORCHRUN,
    TORCHTITAN,
    DEEPSPEED,
    ACCELERATE,
    TRANSFORMERS,
    PEFT,
    BITSANDBYTES,
    MEGATRON,
    PAI_MEGATRON,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TORCHTUNE,
    LITGPT,
    COMPOSER,
    ATORCH,
    HOROVOD,
    HOROVOD_HOSTS,
    DLROVER,
    PADDLE,
)


# They start any script.
STARTERS = frozenset({"torchrun", "horovod", "horovod-hosts", "dlrover"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The launch files of a plan by name, and why the others that it should have could not be written.

    `missing` are those whose program has no option for what was planned, `omitted` those whose writing failed.
    """

    files: Mapping[str, Content]
    missing: Mapping[str, tuple[str, ...]]
    omitted: tuple[Omitted, ...] = ()


def training_artifacts(launch: TrainingLaunch, derived: Derived | None = None) -> LaunchFiles:
    """Return every launch file that is for such plans, or why it cannot be written; `derived` writes each apart."""
    files: dict[str, Content] = {}
    missing: dict[str, tuple[str, ...]] = {}
    derived = derived or Derived()
    for target in TARGETS:
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
    modules = question.recompute.modules if question.recompute is not None else ()
    return given_reasons(
        (
            question.gradient_compression != "none" and target.name not in STARTERS,
            f"Gradients are compressed ({question.gradient_compression}) by the training script or its optimizer.",
        ),
        (
            bool(modules) and target.name not in {*STARTERS, "megatron"},
            f"The recompute of {', '.join(modules)} alone is not written for {target.name}.",
        ),
    )
