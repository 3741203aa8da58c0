"""What the planner answers for each measured case, through the front door that clients use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.accuracy.peak_memory.cases import Cases, MemoryCase
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.plans import Memory
from plimsoll.planners.training.planning import plan_without_advice


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """A case and its answer; `predicted_bytes` is the figure of the kind that was measured."""

    case: MemoryCase
    predicted_bytes: float
    low_bytes: float
    high_bytes: float
    fits: bool
    phase: str

    @property
    def error(self) -> float:
        """Return predicted over measured, less one."""
        measured = self.case.measured_bytes
        if measured is None:
            raise ValueError(f"{self.case.case_id} has no measured peak.")
        return self.predicted_bytes / measured - 1

    @property
    def is_within_bounds(self) -> bool:
        """Return whether the measured peak lies within the bounds of the same kind."""
        measured = self.case.measured_bytes or 0.0
        return self.low_bytes <= measured <= self.high_bytes


def memory_predictions(cases: Cases) -> tuple[list[MemoryPrediction], Counter[tuple[str, str]]]:
    """Return the answers, and how many cases the planner refused, by stack and reason."""
    predictions: list[MemoryPrediction] = []
    refused: Counter[tuple[str, str]] = Counter()
    for case in cases.cases:
        try:
            predictions.append(_prediction(case))
        except PlimsollError as problem:
            refused[case.stack, str(problem)[:90]] += 1
    return predictions, refused


def _prediction(case: MemoryCase) -> MemoryPrediction:
    answer = plan_without_advice(case.question)
    memory = answer.plan.memory
    predicted = {
        "allocated": memory.allocated_bytes,
        "reserved": memory.reserved_bytes,
        "nvidia-smi": memory.peak_bytes,
        "unspecified": memory.reserved_bytes,
        "rank 0": _reserved_on_first_rank(memory),
    }[case.kind]
    # The bounds are of the whole peak; what was read of it varies in the same proportion.
    share = predicted / memory.peak_bytes
    return MemoryPrediction(
        case=case,
        predicted_bytes=predicted,
        low_bytes=memory.peak_low_bytes * share,
        high_bytes=memory.peak_high_bytes * share,
        fits=answer.fits,
        phase=memory.phase,
    )


def _reserved_on_first_rank(memory: Memory) -> int:
    """Return what the allocator keeps on the first stage, which need not be the worst."""
    first = memory.stages[0]
    return first.peak_bytes - first.items.runtime
