"""Which jobs Megatron-Core itself makes the steps of, and which a stand-in does."""

from __future__ import annotations

from plimsoll.service.stacks.megatron.model import LLAMA_FAMILY, why_not_plain
from plimsoll.service.worker.jobs.job import TraceJob

# Its products in fp8 are Transformer Engine's, whose formats no other code knows.
PRECISIONS = ("bf16-mixed", "fp16-mixed", "fp32")
MUON = "muon"
OPTIMIZERS = ("adamw", "sgd-momentum", MUON)


def runs_megatron_core(job: TraceJob) -> bool:
    """Return whether Megatron-LM's own arguments describe the job's model and options, and its kernels have shapes."""
    return (
        job.config.get("model_type") in LLAMA_FAMILY
        and not why_not_plain(job.config)
        and job.precision in PRECISIONS
        and job.optimizer in OPTIMIZERS
    )


def uses_distributed_optimizer(job: TraceJob) -> bool:
    """Return whether states lie in parts of flat buffers; Muon's are dealt out whole by another optimizer."""
    return job.zero_stage > 0 and job.optimizer != MUON


def deals_parameters(job: TraceJob) -> bool:
    """Return whether the layer-wise optimizer deals parameters out whole."""
    return job.zero_stage > 0 and job.optimizer == MUON
