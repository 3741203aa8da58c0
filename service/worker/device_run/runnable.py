"""What of a traceable job runs on a device; free of torch, so that a request can be refused before it is queued."""

from __future__ import annotations

from planners.errors import NotYetAvailable
from service.worker.dry_run.job import TraceJob
from service.worker.dry_run.stacks import Stack


def refuse_what_has_no_values(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable` for what is traced by the shapes of its tensors alone."""
    if stack.has_fused_kernels:
        raise NotYetAvailable(
            f"{job.framework}'s fused kernels are traced by shape and not run on a device yet.",
            pointer="/layout/framework",
        )
    if job.method == "qlora":
        raise NotYetAvailable(
            "4-bit weights are traced by shape and not run on a device yet.", pointer="/training/method"
        )
