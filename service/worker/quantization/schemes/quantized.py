"""What a quantizer takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, Span

Restore: TypeAlias = Callable[[int, int], torch.Tensor]


class NonFiniteWeights(ValueError):
    """A tensor holds NaN or infinity, which no scheme can scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedTensor:
    """A quantized weight: its parts by name, as they would be stored."""

    shape: tuple[int, ...]
    parts: Mapping[str, torch.Tensor]

    @property
    def bytes(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def elements(self) -> int:
        """Return the number of weights."""
        return torch.Size(self.shape).numel()


class Quantizer(Protocol):
    """One scheme. A weight is a contiguous [output features, input features] tensor."""

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return the quantized weight; raises `NonFiniteWeights`."""
        ...

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return the spans of elements that can be restored one by one."""
        ...

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:
        """Return a function from a span to its weights in fp32, as one line."""
        ...


def check_finite(largest: torch.Tensor, *, what: str = "values") -> None:
    """Raise `NonFiniteWeights` where a largest magnitude is NaN or infinite."""
    if not bool(torch.isfinite(largest).all()):
        raise NonFiniteWeights(f"The tensor holds {what} that are not finite.")


def check_scales(scales: torch.Tensor) -> None:
    """Raise `NonFiniteWeights` where finite weights have a scale that its format cannot hold."""
    check_finite(scales, what="values with scales that exceed their format and")


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a tensor's shape as a matrix: the last dimension is the columns."""
    columns = shape[-1] if shape else 1
    return torch.Size(shape).numel() // max(columns, 1), columns
