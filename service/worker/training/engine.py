"""What a traced step asks of a stack's own engine: an optimizer that takes part in the passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.optimizers import Optimizer


class Making(Protocol):
    """Says what is allocated within a block (`StorageTracker.making`)."""

    def __call__(self, kind: Kind) -> AbstractContextManager[None]:
        """Return the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A storage that an engine holds from its making on: what it is for, and on which device it lies."""

    name: str
    storage: torch.UntypedStorage
    kind: Kind
    device: torch.device


class Engine(Optimizer, Protocol):
    """An optimizer that takes part in the passes too."""

    def attach(self, making: Making) -> AbstractContextManager[None]:
        """Return the context in which its hooks stand on parameters and modules."""

    @property
    def model(self) -> Any:
        """Return what is called for a forward pass."""

    def backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Differentiate the loss of a micro-batch, the step's last or not."""

    def standing(self) -> Iterator[Standing]:
        """Yield the storages that the engine has made before the first step."""
