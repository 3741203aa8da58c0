"""Which jobs Megatron-Core itself makes the steps of, and which a stand-in does."""

from __future__ import annotations

from plimsoll.service.stacks.megatron.model import LLAMA_FAMILY, why_not_plain
from plimsoll.service.worker.jobs.job import TraceJob

# Its products in fp8 are Transformer Engine's, whose formats no other code knows.
PRECISIONS = ("bf16-mixed", "fp16-mixed", "fp32")
OPTIMIZERS = ("adamw", "sgd-momentum")


def runs_megatron_core(job: TraceJob) -> bool:
    """Return whether Megatron-LM's own arguments describe the job's model and options, and its kernels have shapes."""
    return (
        job.config.get("model_type") in LLAMA_FAMILY
        and not why_not_plain(job.config)
        and job.precision in PRECISIONS
        and job.optimizer in OPTIMIZERS
    )
