"""What is not traced of DeepSpeed's engine."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import MIXED_PRECISIONS
from plimsoll.service.worker.jobs.rule import Rule

PARAMETERS_HAVE_16_BITS = Rule(
    broken=lambda asked: asked.job.precision not in MIXED_PRECISIONS,
    pointer="/training/precision",
    words=lambda asked: f"DeepSpeed is traced over 16-bit parameters with an fp32 copy, not in {asked.job.precision}.",
)
NOTHING_IS_OFFLOADED = Rule(
    broken=lambda asked: asked.job.states_on_host or asked.job.activation_offload,
    pointer="/layout/offload",
    words="DeepSpeed's offload is not traced yet.",
)
RULES_OF_THE_ENGINE = (PARAMETERS_HAVE_16_BITS, NOTHING_IS_OFFLOADED)
