"""Which jobs Liger's kernels can be put into, and of those which are traced; free of torch.

Source: linkedin/Liger-Kernel 0.8.5, `transformers/monkey_patch.py`, `ops/`.
"""

from __future__ import annotations

from plimsoll.planners.families import model_types_with
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.job import TraceJob
from plimsoll.service.worker.training.stack import SelectiveRecompute, Stack


def liger_model_types() -> tuple[str, ...]:
    """Return the families that both Liger has a patch for and the trace has a model of."""
    return model_types_with(lambda family: family.tracing is not None and family.tracing.liger is not None)


def refuse_liger_kernels(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable` for a job that Liger's kernels or its fused loss cannot run, or are not traced in."""
    model_type, liger = job.config["model_type"], job.tracing.liger
    if job.fused_cross_entropy and job.tensor_parallel > 1:
        raise NotYetAvailable(
            "Liger's fused cross-entropy multiplies by the whole head and takes the softmax within one rank: a "
            "vocabulary split over tensor-parallel ranks has none.",
            pointer="/layout/fused_cross_entropy",
        )
    if job.fused_cross_entropy and liger is not None and not liger.has_fused_loss:
        raise NotYetAvailable(
            f"Liger has no fused cross-entropy for {model_type!r}, which scales its logits.",
            pointer="/layout/fused_cross_entropy",
        )
    if not stack.has_liger_kernels:
        return
    if liger is None:
        raise NotYetAvailable(
            f"Liger's kernels are traced in {', '.join(liger_model_types())}, not in {model_type!r}.",
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
