"""Tells a ledger's tracker which tensors are gradients, as each becomes whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import StorageTracker


@contextlib.contextmanager
def labelling_gradients(parameters: Iterable[torch.Tensor], tracker: StorageTracker) -> Iterator[None]:
    """Call a gradient a gradient within the block, unless it lies in a buffer that is sent."""

    def label(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and tracker.kind_of(parameter.grad) is not Kind.COMMUNICATION:
            tracker.label(parameter.grad, Kind.GRADIENT, "gradient")

    handles = [
        parameter.register_post_accumulate_grad_hook(label)  # type: ignore[no-untyped-call]
        for parameter in parameters
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
