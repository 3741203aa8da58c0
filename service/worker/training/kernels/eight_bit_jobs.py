"""Which jobs with matrix products in fp8 are traced; free of torch, so that requests are refused before a queue."""

from __future__ import annotations

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.job import TraceJob
from plimsoll.service.worker.training.stack import Stack

FP8_MIXED = "fp8-mixed"


def refuse_eight_bit_products(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable`, naming the reason, for a job with products in fp8 that is not traced."""
    if job.precision != FP8_MIXED:
        return
    if not stack.casts_products:
        raise NotYetAvailable(
            f"{job.framework} is not traced in fp8: only torchtitan's products, which are torchao's, are yet.",
            pointer="/training/precision",
        )
    if job.tensor_parallel > 1:
        raise NotYetAvailable(
            "Products in fp8 are traced without tensor parallelism, whose gathers torchao sends in fp8.",
            pointer="/layout/tensor_parallel",
        )
    if job.has_experts:
        raise NotYetAvailable(
            "Products in fp8 are not traced in mixtures: torchtitan casts their experts by another way.",
            pointer="/training/precision",
        )
    if job.recompute == "selective":
        raise NotYetAvailable(
            "Products in fp8 are traced without selective recomputation.", pointer="/layout/recompute"
        )
