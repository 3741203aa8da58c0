"""Which models beside the one that learns are traced: a frozen reference, as TRL's preference trainer runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.terms import REFERENCE
from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.stacks.found import traced_stacks

COMPANIONS = "/training/companions"


def _companions(asked: Asked) -> tuple[Mapping[str, Any], ...]:
    return tuple(asked.training.get("companions") or ())


def _other_role(asked: Asked) -> str | None:
    """Return the first role but that of a reference."""
    return next((each["role"] for each in _companions(asked) if each["role"] != REFERENCE), None)


ONLY_REFERENCES = Rule(
    broken=lambda asked: _other_role(asked) is not None,
    pointer=COMPANIONS,
    words=lambda asked: (
        f"A {_other_role(asked)} model is not traced: TRL 1.16 has no trainer that runs one beside the policy's step. "
        "A frozen reference is traced."
    ),
)
ONE_REFERENCE = Rule(
    broken=lambda asked: len(_companions(asked)) > 1,
    pointer=COMPANIONS,
    words=lambda asked: f"{len(_companions(asked))} models beside the policy are not traced; one reference is.",
)
REFERENCE_IS_LIKE_THE_POLICY = Rule(
    broken=lambda asked: any(each.get("model") for each in _companions(asked)),
    pointer=COMPANIONS,
    words="A reference of another model is not traced yet; without `model` it is the policy's own.",
)
TRL_RUNS_ON_THE_STACK = Rule(
    broken=lambda asked: (
        asked.job.reference is not None and not (asked.stack.own_trainer and asked.stack.runs_own_wrapper(asked.job))
    ),
    pointer=COMPANIONS,
    words=lambda asked: (
        f"A reference is not traced under {asked.job.framework} as laid out here; traced is TRL's trainer under "
        f"{listed([stack.name for stack in traced_stacks(lambda stack: bool(stack.own_trainer))], 'and')}."
    ),
)
SEQUENCES_ARE_PAIRS = Rule(
    broken=lambda asked: asked.job.reference is not None and asked.job.micro_batch_size % 2 != 0,
    pointer="/layout/micro_batch_size",
    words=lambda asked: (
        f"TRL compares a chosen sequence with a rejected one, and {asked.job.micro_batch_size} in a micro-batch are "
        "no whole number of pairs; an even micro_batch_size is traced."
    ),
)
HEAD_IS_TRLS = Rule(
    broken=lambda asked: asked.job.reference is not None and asked.job.fused_cross_entropy,
    pointer="/layout/fused_cross_entropy",
    words=(
        "TRL's preference trainer refuses Liger's fused loss, for it has a fused head of its own; without "
        "fused_cross_entropy that is traced."
    ),
)
REFERENCE_IS_ON_THE_DEVICE = Rule(
    broken=lambda asked: asked.job.reference is not None and asked.job.states_on_host,
    pointer="/layout/offload",
    words="A reference whose weights wait on the host with the policy's is not traced yet.",
)
LOSS_HAS_NO_ROUTING = Rule(
    broken=lambda asked: asked.job.reference is not None and asked.job.has_experts,
    pointer=COMPANIONS,
    words="A reference beside a mixture of experts is not traced yet.",
)
RULES = (
    ONLY_REFERENCES,
    ONE_REFERENCE,
    REFERENCE_IS_LIKE_THE_POLICY,
    TRL_RUNS_ON_THE_STACK,
    SEQUENCES_ARE_PAIRS,
    HEAD_IS_TRLS,
    REFERENCE_IS_ON_THE_DEVICE,
    LOSS_HAS_NO_ROUTING,
)
