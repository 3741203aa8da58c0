"""What is not traced of DeepSpeed's engine."""

from __future__ import annotations

from plimsoll.service.stacks.deepspeed.launch import OPTIMIZERS, adds_up_gradients_in
from plimsoll.service.worker.jobs.job import MIXED_PRECISIONS
from plimsoll.service.worker.jobs.rule import Rule

PARAMETERS_HAVE_16_BITS = Rule(
    broken=lambda asked: asked.job.precision not in MIXED_PRECISIONS,
    pointer="/training/precision",
    words=lambda asked: f"DeepSpeed is traced over 16-bit parameters with an fp32 copy, not in {asked.job.precision}.",
)
ACTIVATIONS_STAY = Rule(
    broken=lambda asked: asked.job.activation_offload,
    pointer="/layout/activation_offload",
    words="Activations that wait on the host are not traced beside DeepSpeed's engine yet; its states are.",
)
CONFIG_NAMES_THE_OPTIMIZER = Rule(
    broken=lambda asked: asked.job.optimizer not in OPTIMIZERS,
    pointer="/training/optimizer",
    words=lambda asked: (
        f"DeepSpeed is traced with {', '.join(sorted(OPTIMIZERS))}, which its config names, not with "
        f"{asked.job.optimizer}."
    ),
)
GRADIENTS_HAVE_A_FORMAT_OF_ITS_OWN = Rule(
    broken=lambda asked: not adds_up_gradients_in(asked.job.gradient_dtype, asked.job.zero_stage, asked.job.precision),
    pointer="/training/gradient_dtype",
    words=lambda asked: (
        f"Without ZeRO DeepSpeed adds gradients up in the model's own format and does not start with "
        f"{asked.job.gradient_dtype}."
    ),
)
RULES_OF_THE_ENGINE = (
    PARAMETERS_HAVE_16_BITS,
    ACTIVATIONS_STAY,
    CONFIG_NAMES_THE_OPTIMIZER,
    GRADIENTS_HAVE_A_FORMAT_OF_ITS_OWN,
)
