"""Recomputation of a module whose output another one keeps for its backward pass, such as a norm before attention.

Checkpointing such a module alone saves nothing, for its user holds the output. Here the output's storage is emptied
once the user has run, and filled again, by a second run of the module, as the gradient of the user's result arrives.

Source: NVIDIA/Megatron-LM, core/tensor_parallel/random.py (`CheckpointWithoutOutput`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


def discard_output(module: nn.Module, *, until: nn.Module) -> None:
    """Discard a module's output after each call of `until`, the module that uses it.

    Under `no_grad` nothing is kept for a backward pass, and nothing is discarded.
    """
    compute: Callable[[torch.Tensor], torch.Tensor] = module.forward
    calls: list[_DiscardedCall] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return compute(hidden)
        calls.append(_DiscardedCall(compute))
        return calls[-1].output_of(hidden)

    def discard(_module: nn.Module, _inputs: Any, result: Any) -> None:
        if calls:
            calls.pop().discard_until_gradient_of(result[0] if isinstance(result, tuple) else result)

    module.forward = forward
    until.register_forward_hook(discard)


class _DiscardedCall:
    """One call of a module: its output while its user runs, and the second run in the backward pass."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.compute = compute
        self._hidden: torch.Tensor | None = None
        self._output: torch.Tensor | None = None
        self._second_run: tuple[torch.Tensor, torch.Tensor] | None = None

    def output_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the module's output for an input, of which the input alone is saved."""
        output: torch.Tensor = _SavesInputAlone.apply(hidden, self)  # type: ignore[no-untyped-call]
        self._hidden, self._output = hidden, output
        return output

    def discard_until_gradient_of(self, result: torch.Tensor) -> None:
        """Empty the output's storage now, and run the module again as the gradient of its user's result arrives."""
        if self._output is not None:
            full_bytes = self._output.untyped_storage().nbytes()
            self._output.untyped_storage().resize_(0)
            result.register_hook(functools.partial(self._run_again, full_bytes))  # type: ignore[no-untyped-call]

    def _run_again(self, full_bytes: int, gradient: torch.Tensor) -> torch.Tensor:
        """Run the module again, and copy its output into the storage that the user holds; return the gradient as it is.

        For a moment the output is there twice, as in Megatron-LM.
        """
        if self._hidden is not None and self._output is not None:
            hidden = self._hidden.detach().requires_grad_()
            with torch.enable_grad():
                self._second_run = (hidden, self.compute(hidden))
            self._output.untyped_storage().resize_(full_bytes)
            if not isinstance(self._output, FakeTensor):
                # The storage's own copy: autograd would take one of the tensor for a change of what was saved.
                self._output.untyped_storage().copy_(self._second_run[1].untyped_storage())
        self._hidden = self._output = None
        return gradient

    def take_second_run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input and the output of the second run, and let go of them."""
        if self._second_run is None:
            raise RuntimeError("The backward pass reached an output before its user.")
        taken, self._second_run = self._second_run, None
        return taken


class _SavesInputAlone(torch.autograd.Function):
    """A module's call that saves its input and nothing else, and is differentiated by its second run."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, call: _DiscardedCall) -> torch.Tensor:
        """Return the output."""
        ctx.call = call
        ctx.save_for_backward(hidden)
        with torch.no_grad():
            return call.compute(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        """Return the input's gradient; those of the module's weights are added where they accumulate."""
        hidden, output = ctx.call.take_second_run()
        torch.autograd.backward(output, gradients[0])
        return hidden.grad, None
