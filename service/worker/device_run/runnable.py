"""What of a traceable job runs on a device; free of torch, so that a request can be refused before it is queued."""

from __future__ import annotations

from planners.errors import NotYetAvailable
from service.worker.dry_run.job import TraceJob


def refuse_what_has_no_values(job: TraceJob) -> None:
    """Raise `NotYetAvailable` for what is traced by the shapes of its tensors alone."""
    if job.method == "qlora":
        raise NotYetAvailable(
            "4-bit weights are traced by shape and not run on a device yet.", pointer="/training/method"
        )
