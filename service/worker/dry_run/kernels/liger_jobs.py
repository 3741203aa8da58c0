"""Which jobs Liger's kernels can be put into, and of those which are traced; free of torch.

Source: linkedin/Liger-Kernel 0.8.5, `transformers/monkey_patch.py`, `ops/`.
"""

from __future__ import annotations

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.dry_run.job import TraceJob
from plimsoll.service.worker.dry_run.stacks import SelectiveRecompute, Stack

# Dense families that both Liger has a patch for and the trace has a model of.
LIGER_MODEL_TYPES = ("gemma", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")
# `apply_liger_kernel_to_granite`: its logits are scaled, which the fused loss has no term for.
WITHOUT_FUSED_LOSS = ("granite",)


def refuse_liger_kernels(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable` for a job that Liger's kernels or its fused loss cannot run, or are not traced in."""
    model_type = job.config["model_type"]
    if job.fused_cross_entropy and job.tensor_parallel > 1:
        raise NotYetAvailable(
            "Liger's fused cross-entropy multiplies by the whole head and takes the softmax within one rank: a "
            "vocabulary split over tensor-parallel ranks has none.",
            pointer="/layout/fused_cross_entropy",
        )
    if job.fused_cross_entropy and model_type in WITHOUT_FUSED_LOSS:
        raise NotYetAvailable(
            f"Liger has no fused cross-entropy for {model_type!r}, which scales its logits.",
            pointer="/layout/fused_cross_entropy",
        )
    if not stack.has_liger_kernels:
        return
    if model_type not in LIGER_MODEL_TYPES:
        raise NotYetAvailable(
            f"Liger's kernels are traced in {', '.join(LIGER_MODEL_TYPES)}, not in {model_type!r}.",
            pointer="/training/kernels",
        )
    if job.tensor_parallel > 1 or job.context_parallel > 1 or job.pipeline_parallel > 1:
        raise NotYetAvailable(
            "Liger's kernels are traced over data-parallel ranks alone: its norm gathers a sequence that is split "
            "over ranks (ops/rms_norm.py, full_tensor).",
            pointer="/training/kernels",
        )
    if job.recompute == "selective" and stack.selective is SelectiveRecompute.OPERATIONS:
        raise NotYetAvailable(
            "Selective recomputation keeps the queries' product, which Liger's rotation writes over: computed again, "
            "it would be rotated twice.",
            pointer="/layout/recompute",
        )
