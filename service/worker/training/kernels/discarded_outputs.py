"""Outputs that are thrown away once they were used, and computed again as the backward pass reaches their user.

Source: NVIDIA/Megatron-LM, core/tensor_parallel/random.py (`CheckpointWithoutOutput`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


class _OutputThrownAway(torch.autograd.Function):
    """A module's output that keeps the module's input alone."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, discarded: DiscardedOutput) -> torch.Tensor:
        """Return the output, and nothing of how it came about."""
        ctx.discarded = discarded
        ctx.save_for_backward(hidden)
        with torch.no_grad():
            return discarded.compute(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        """Return the input's gradient, from the output that was computed again."""
        hidden, output = ctx.discarded.take_again()
        torch.autograd.backward(output, gradients[0])
        return hidden.grad, None


class DiscardedOutput:
    """One call's output: its storage is emptied, and filled as its user is differentiated."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.compute = compute
        self._hidden: torch.Tensor | None = None
        self._output: torch.Tensor | None = None
        self._again: tuple[torch.Tensor, torch.Tensor] | None = None

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output, to be used before `discard_after` is called."""
        output: torch.Tensor = _OutputThrownAway.apply(hidden, self)  # type: ignore[no-untyped-call]
        self._hidden, self._output = hidden, output
        return output

    def discard_after(self, used: torch.Tensor) -> None:
        """Empty the output now, and fill it as the gradient of `used` arrives."""
        if self._output is not None:
            full_bytes = self._output.untyped_storage().nbytes()
            self._output.untyped_storage().resize_(0)
            used.register_hook(functools.partial(self._fill, full_bytes))  # type: ignore[no-untyped-call]

    def take_again(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return input and output of the second time, and forget them."""
        if self._again is None:
            raise RuntimeError("The backward pass reached an output before its user.")
        again, self._again = self._again, None
        return again

    def _fill(self, full_bytes: int, gradient: torch.Tensor) -> torch.Tensor:
        """Compute the output again, beside the storage that its user kept, which gets a copy of it."""
        if self._hidden is not None and self._output is not None:
            hidden = self._hidden.detach().requires_grad_()
            with torch.enable_grad():
                self._again = (hidden, self.compute(hidden))
            self._output.untyped_storage().resize_(full_bytes)
            if not isinstance(self._output, FakeTensor):
                # The storage's own copy: one of the tensor would look like a change of what was kept.
                self._output.untyped_storage().copy_(self._again[1].untyped_storage())
        self._hidden = self._output = None
        return gradient


def discard_output(module: nn.Module, *, until: nn.Module) -> None:
    """Throw a module's output away after every call of `until`, which is what uses it."""
    compute: Callable[[torch.Tensor], torch.Tensor] = module.forward
    calls: list[DiscardedOutput] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return compute(hidden)
        calls.append(DiscardedOutput(compute))
        return calls[-1].run(hidden)

    def used(_module: nn.Module, _inputs: Any, result: Any) -> None:
        if calls:
            calls.pop().discard_after(result[0] if isinstance(result, tuple) else result)

    module.forward = forward
    until.register_forward_hook(used)
