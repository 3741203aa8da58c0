"""What a traced step asks of a stack's own code: an optimizer that takes part in the passes, or a whole rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """A storage that a stack's own code holds from its making on: what it is for, and on which device it lies.

    `on_host` says that it was made inside `on_host()`, which its device does not tell.
    """

    name: str
    storage: torch.UntypedStorage
    kind: Kind
    device: torch.device
    on_host: bool = False


class Objective(Protocol):
    """What a trainer makes a loss of, where it is not the model's own of the next tokens."""

    @property
    def logit_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the rows and columns that mark a tensor as logits."""

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a micro-batch's inputs."""

    def loss(self, model: Any, batch: dict[str, torch.Tensor]) -> Any:
        """Return the loss of a micro-batch, by the wrapped model."""


class Evaluating(Protocol):
    """Evaluations between steps, as a stack runs them."""

    def run(self) -> None:
        """Evaluate, and go back to training."""


class Engine(Optimizer, Protocol):
    """An optimizer that takes part in the passes too."""

    @property
    def evaluation(self) -> Evaluating | None:
        """Return what evaluates after a step, None where nothing does."""

    @property
    def objective(self) -> Objective | None:
        """Return what makes the loss, None where it is the model's own."""

    def attach(self, making: Making) -> AbstractContextManager[None]:
        """Return the context in which its hooks stand on parameters and modules."""

    @property
    def model(self) -> Any:
        """Return what is called for a forward pass."""

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's passes, the step's last or not."""

    def backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Differentiate the loss of a micro-batch, the step's last or not."""

    def standing(self) -> Iterator[Standing]:
        """Yield the storages that the engine has made before the first step."""


class OwnRank(Protocol):
    """A rank that a stack's own code makes and runs, its model too."""

    @property
    def logit_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the rows and columns that mark a tensor as logits."""

    @property
    def summed_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the shapes of weights that a pass uses several times."""

    @property
    def layers_of_chunks(self) -> Sequence[Sequence[Any]]:
        """Return the decoder's layers of each chunk of the rank's stage."""

    @property
    def learning(self) -> Sequence[torch.Tensor]:
        """Return the parameters whose gradients autograd makes, none where buffers have them."""

    def standing(self) -> Iterator[Standing]:
        """Yield the storages that have been made before the first step."""

    def attached(self, making: Making) -> AbstractContextManager[None]:
        """Return the context that names what is allocated in its passes."""

    def run_passes(self, begin_phase: Callable[[str], None]) -> None:
        """Run a step's forward and backward passes, and say which begins."""

    def update(self) -> None:
        """Update the parameters."""

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the optimizer's states, once they exist."""
