"""What DeepSpeed's engines share whose parameters stay whole on every rank: one flat fp32 master copy, or a part of it.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and runtime/fp16/fused_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from plimsoll.service.worker.training.optimizers import replicated_optimizer


class FlatMaster:
    """An optimizer over a flat fp32 master of so many elements, for 16-bit parameters that keep their own gradients."""

    def __init__(self, name: str, parameters: list[nn.Parameter], elements: int) -> None:
        self._parameters = parameters
        self._master = nn.Parameter(torch.empty(elements, dtype=torch.float32))
        self._inner = replicated_optimizer(name, [self._master])

    def zero_grad(self) -> None:
        """Drop the parameters' own gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the fp32 master and the states' tensors, once they exist."""
        yield "fp32 master", self._master
        yield from self._inner.named_states()

    def named_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield nothing: the parameters themselves are views of all there is."""
        yield from ()

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return nothing: buckets last for a backward pass."""
        return []

    def named_gradients(self) -> list[tuple[str, torch.Tensor]]:
        """Return nothing: gradients are made by the first backward pass."""
        return []


def flattened(parameters: list[nn.Parameter], *, multiple: int) -> torch.Tensor:
    """Return a flat buffer, its length a multiple, of which the parameters are views from now on."""
    elements = sum(parameter.numel() for parameter in parameters)
    flat = torch.empty(-(-elements // multiple) * multiple, dtype=parameters[0].dtype)
    offset = 0
    for parameter in parameters:
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return flat
