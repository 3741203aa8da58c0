"""What plans are drawn around, so that what seldom meets by chance is met often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from plimsoll.planners.ground.terms import GPIPE
from plimsoll.planners.stacks.profile import Profile
from plimsoll.service.worker.jobs.job import EVERY_STATE, FP8_MIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What a plan is drawn around; `weight` says how often, `suits` which stacks can have it.

    The other fields are drawn for certain where they are true, or are values.
    """

    weight: int
    suits: Callable[[Profile], bool] = lambda _profile: True
    tensor: bool = False
    pipeline: bool = False
    interleaved: bool = False
    context: bool = False
    experts: bool = False
    grouped: bool = False
    short: bool = False
    accumulates: bool = False
    tied: bool = False
    zero_stage: int | None = None
    method: str | None = None
    kernels: str | None = None
    precision: str | None = None
    schedule: str | None = None
    offload: str | None = None
    moves_activations: bool = False


def _able(*abilities: str) -> Callable[[Profile], bool]:
    return lambda profile: all(getattr(profile.can, ability) for ability in abilities)


THEMES = (
    Theme(weight=38),
    Theme(weight=15, suits=lambda profile: "lora" in profile.can.methods, method="lora"),
    Theme(weight=6, suits=lambda profile: "qlora" in profile.can.methods, method="qlora"),
    Theme(weight=12, suits=_able("tensor_parallel"), tensor=True, short=True),
    Theme(weight=8, suits=_able("tensor_parallel"), tensor=True, tied=True, short=True),
    Theme(weight=10, suits=_able("shard_group"), grouped=True, accumulates=True),
    Theme(weight=6, suits=_able("pipeline_parallel"), pipeline=True),
    Theme(weight=5, suits=_able("pipeline_parallel", "shard_group"), pipeline=True, zero_stage=2),
    Theme(weight=7, suits=_able("virtual_pipeline"), pipeline=True, interleaved=True),
    Theme(weight=5, suits=lambda profile: GPIPE in profile.can.pipeline_schedules, pipeline=True, schedule=GPIPE),
    Theme(weight=5, suits=_able("context_parallel"), context=True),
    Theme(weight=8, suits=_able("expert_parallel"), experts=True),
    Theme(weight=5, suits=lambda profile: "fused" in profile.kernel_choices, kernels="fused"),
    Theme(weight=3, suits=lambda profile: FP8_MIXED in profile.states, precision=FP8_MIXED),
    Theme(weight=4, suits=lambda profile: EVERY_STATE in profile.can.offload, offload=EVERY_STATE),
    Theme(weight=3, suits=lambda profile: profile.can.activation_offload != "none", moves_activations=True),
)


def drawn_theme(random: Random) -> Theme:
    """Return what a plan is drawn around."""
    return random.choices(THEMES, [theme.weight for theme in THEMES])[0]
