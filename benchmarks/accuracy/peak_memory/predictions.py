"""What the service answers for each measured case, read out of the answer's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.accuracy.asking import Json, Refused, Service
from benchmarks.accuracy.peak_memory.cases import ALLOCATED, CARD, FIRST_RANK, LAST_STAGE, MemoryCase


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """A case and its answer; `predicted_bytes` is the figure of the kind that was measured.

    All but the case is empty where the service `refused`.
    """

    case: MemoryCase
    refused: Refused | None = None
    predicted_bytes: float = 0.0
    low_bytes: float = 0.0
    high_bytes: float = 0.0
    fits: bool = False
    phase: str = ""

    @property
    def error(self) -> float:
        """Return predicted over measured, less one."""
        measured = self.case.measured_bytes
        if measured is None:
            raise ValueError(f"{self.case.case_id} has no measured peak.")
        return self.predicted_bytes / measured - 1


def memory_predictions(cases: Iterable[MemoryCase], service: Service) -> list[MemoryPrediction]:
    """Return each case with what the service answers, or why it does not."""
    return [_prediction(case, service.answer(case.request)) for case in cases]


def _prediction(case: MemoryCase, answer: Json | Refused) -> MemoryPrediction:
    if isinstance(answer, Refused):
        return MemoryPrediction(case=case, refused=answer)
    memory = answer["plan"]["memory"]
    predicted = _figure_read(case, memory)
    # The bounds are of the whole peak; what was read of it varies in the same proportion.
    share = predicted / memory["peak_bytes"]
    return MemoryPrediction(
        case=case,
        predicted_bytes=predicted,
        low_bytes=memory["peak_low_bytes"] * share,
        high_bytes=memory["peak_high_bytes"] * share,
        fits=answer["fits"],
        phase=memory["phase"],
    )


def _figure_read(case: MemoryCase, memory: Json) -> float:
    """Return the figure of an answer that was measured, of the stage that was read."""
    if case.place in (FIRST_RANK, LAST_STAGE):
        # Which need not be the worst.
        stage = memory["stages"][0 if case.place == FIRST_RANK else -1]
        reserved = stage["peak_bytes"] - stage["items"]["runtime"]
        allocated = reserved - stage["items"]["fragmentation"]
        peak = stage["peak_bytes"]
    else:
        allocated, reserved, peak = (memory[f"{name}_bytes"] for name in ("allocated", "reserved", "peak"))
    return float({ALLOCATED: allocated, CARD: peak}.get(case.kind, reserved))
