"""What a traced step asks of a stack's own engine: an optimizer that takes part in the passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.optimizers import Optimizer


class Making(Protocol):
    """Says what is allocated within a block (`StorageTracker.making`)."""

    def __call__(self, kind: Kind) -> AbstractContextManager[None]:
        """Return the context."""


class Engine(Optimizer, Protocol):
    """An optimizer that takes part in the passes too."""

    def attach(self, making: Making) -> AbstractContextManager[None]:
        """Return the context in which its hooks stand on parameters and modules."""

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Take note that a micro-batch begins, the step's last or not."""

    def end_backward(self) -> None:
        """Reduce what waits, once a backward pass is over."""

    def named_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what is stored of the parameters beside themselves."""

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return the buffers that stand from the first step's beginning."""

    def named_gradients(self) -> list[tuple[str, torch.Tensor]]:
        """Return the gradients' own buffers that stand from the first step's beginning."""
