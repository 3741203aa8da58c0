"""Forward passes of models beside the one that learns, in its step: after its own, while all that it keeps stands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.companions import companion_forwards
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.step import COMPANION_FORWARD, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BesidePolicy:
    """Whole bytes of one rank while a companion runs forward: its weights, its layer at work, then its loss."""

    role: str
    gathered: FloatArray
    copies: FloatArray
    layer: FloatArray
    loss: FloatArray


def beside_policy(asked: Question) -> tuple[BesidePolicy, ...]:
    """Return what each companion holds as it runs."""
    return tuple(
        BesidePolicy(
            role=forward.role,
            gathered=np.ceil(forward.gathered),
            copies=np.ceil(forward.copies),
            layer=np.ceil(forward.kept),
            loss=np.ceil(forward.loss),
        )
        for forward in companion_forwards(asked.layouts, asked.job, asked.held)
    )


def run_beside_policy(step: Step, companions: tuple[BesidePolicy, ...]) -> None:
    """Let the companions run, one after the other."""
    for companion in companions:
        step.phase = COMPANION_FORWARD
        weights = step.take("communication", f"{companion.role}'s gathered weights", companion.gathered)
        copies = step.take("parameters", f"copies of the {companion.role}'s weights", companion.copies)
        step.drop(step.take("activations", f"{companion.role}'s layer", companion.layer))
        step.drop(step.take("logits", f"{companion.role}'s loss", companion.loss), weights, copies)
