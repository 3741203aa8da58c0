"""What measured starts of one model on one GPU and engine version taught, as a question carries it.

Weights and activations follow the model, so that measured over planned is a factor
at every layout; what is outside torch follows the communicators, so that it is an
offset in bytes where the ranks are of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ranks(StrEnum):
    """Kinds of layouts by what communicates within a stage."""

    SINGLE = "single"
    PIPELINE = "pipeline"
    TENSOR = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Measured over planned, 1 where nothing was measured, and bytes outside torch by the kind of ranks.

    `revision` names the exact values, `provenance` says whose they are.
    """

    revision: str
    provenance: str
    weights_factor: float = 1.0
    activations_factor: float = 1.0
    cuda_graphs_factor: float = 1.0
    single_offset_bytes: int = 0
    pipeline_offset_bytes: int = 0
    tensor_offset_bytes: int = 0
    ttft_factor: float = 1.0
    tpot_factor: float = 1.0

    def offset_bytes(self, ranks: Ranks) -> int:
        """Return what more than planned lies outside torch on ranks of a kind."""
        offset: int = getattr(self, offset_name(ranks))
        return offset

    def runtime_bytes(self, planned_bytes: int, ranks: Ranks) -> int:
        """Return what lies outside torch on ranks of a kind."""
        return max(0, planned_bytes + self.offset_bytes(ranks))


def offset_name(ranks: Ranks) -> str:
    """Return the name of the offset of a kind of ranks."""
    return f"{ranks.value}_offset_bytes"
