"""Which evaluations between steps are traced: those of transformers' Trainer, where accelerate runs beneath it."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Asked, Rule

EVALUATION = "/training/evaluation"
# Our own choice: a trace of so many forward passes takes as long as that of ten steps.
MOST_KEPT_BATCHES = 64


def _kept_batches(asked: Asked) -> int:
    """Return how many batches' logits are kept at once, none where they are not."""
    wanted = asked.job.evaluation
    return wanted.kept_batches(asked.job.data_parallel) if wanted is not None else 0


TRAINER_EVALUATES = Rule(
    broken=lambda asked: (
        asked.job.evaluation is not None and not (asked.stack.evaluates and asked.stack.runs_own_wrapper(asked.job))
    ),
    pointer=EVALUATION,
    words=lambda asked: (
        f"Evaluations under {asked.job.framework} as laid out here are not traced; those of transformers' Trainer are."
    ),
)
POLICY_IS_ALONE = Rule(
    broken=lambda asked: asked.job.evaluation is not None and asked.job.reference is not None,
    pointer=EVALUATION,
    words="Evaluations of a policy beside its reference are not traced yet; either is without the other.",
)
LOSS_IS_THE_MODEL_S = Rule(
    broken=lambda asked: asked.job.evaluation is not None and asked.job.fused_cross_entropy,
    pointer="/layout/fused_cross_entropy",
    words="Evaluations are not traced with a fused loss, whose stand-in is for steps; without it they are.",
)
BATCHES_ARE_FEW = Rule(
    broken=lambda asked: _kept_batches(asked) > MOST_KEPT_BATCHES,
    pointer=EVALUATION,
    words=lambda asked: (
        f"An evaluation that keeps the logits of {_kept_batches(asked)} batches is not traced; one of "
        f"{MOST_KEPT_BATCHES} is, as with accumulation_steps or fewer samples."
    ),
)
RULES = (TRAINER_EVALUATES, POLICY_IS_ALONE, LOSS_IS_THE_MODEL_S, BATCHES_ARE_FEW)
