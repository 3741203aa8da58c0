"""Gradients averaged over replicas that each hold the whole model, a bucket at a time.

DistributedDataParallel does the same while the backward pass still runs; the
buckets are its own, and stand from the first step on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from plimsoll.service.worker.training.optimizers import Optimizer, local_gradient


class ReducedFirst:
    """An optimizer that averages the gradients of `parameters` through `buckets` before it updates."""

    def __init__(
        self,
        inner: Optimizer,
        parameters: list[torch.nn.Parameter],
        buckets: list[torch.Tensor],
        group: dist.ProcessGroup,
    ) -> None:
        self._inner, self._buckets, self._group = inner, buckets, group
        # Buckets are filled as the backward pass goes: from the last parameter on.
        self._parameters = list(reversed(parameters))

    def step(self) -> Any:
        """Average the gradients, and update."""
        waiting = iter(self._parameters)
        for bucket in self._buckets:
            slices = [(bucket[place], gradient) for place, gradient in _filled(bucket, waiting)]
            for place, gradient in slices:
                place.copy_(gradient.reshape(-1))
            dist.all_reduce(bucket, group=self._group)
            bucket.div_(dist.get_world_size(self._group))
            for place, gradient in slices:
                gradient.copy_(place.view_as(gradient))
        return self._inner.step()

    def zero_grad(self) -> Any:
        """Drop the gradients."""
        return self._inner.zero_grad()

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the states' tensors, once they exist."""
        return self._inner.named_states()


def _filled(bucket: torch.Tensor, waiting: Iterator[torch.nn.Parameter]) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the places of a bucket and the gradients that belong there, until it is full."""
    start = 0
    while start < bucket.numel():
        gradient = local_gradient(next(waiting))
        yield slice(start, start + gradient.numel()), gradient
        start += gradient.numel()
