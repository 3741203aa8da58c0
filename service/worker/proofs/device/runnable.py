"""What of a traceable job runs on a device; free of torch, so that a request can be refused before it is queued."""

from __future__ import annotations

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.job import TraceJob
from plimsoll.service.worker.training.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.training.kernels.eight_bit_jobs import FP8_MIXED
from plimsoll.service.worker.training.traceable import ZERO_FRAMEWORKS


def refuse_what_has_no_values(job: TraceJob) -> None:
    """Raise `NotYetAvailable` for what is traced by shapes alone, or by telling two memories apart."""
    if job.framework in ZERO_FRAMEWORKS:
        raise NotYetAvailable(
            "DeepSpeed's engine is stood in for in a trace, and not run on a device yet.", pointer="/layout/framework"
        )
    if job.method == "qlora":
        raise NotYetAvailable(
            "4-bit weights are traced by shape and not run on a device yet.", pointer="/training/method"
        )
    if job.optimizer in KERNEL_RULES:
        raise NotYetAvailable(
            f"The states of {job.optimizer} are traced by rule and not run on a device yet.",
            pointer="/training/optimizer",
        )
    if job.precision == FP8_MIXED:
        raise NotYetAvailable(
            "Products in fp8 are traced by torchao's code and not run on a device yet.", pointer="/training/precision"
        )
    if job.states_on_host or job.activation_offload:
        raise NotYetAvailable(
            "What waits on the host is told from what is on the device in a trace, and not run on one yet.",
            pointer="/layout/offload" if job.states_on_host else "/layout/activation_offload",
        )
