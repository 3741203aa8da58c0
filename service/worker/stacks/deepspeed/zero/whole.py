"""DeepSpeed without ZeRO (stage 0): every rank has all 16-bit parameters and an fp32 copy of them, flat.

Source: DeepSpeed 0.19.8, runtime/fp16/fused_optimizer.py (`FP16_Optimizer`, which bf16 has too) and
runtime/engine.py (`buffered_allreduce_fallback`, `allreduce_no_retain`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.deepspeed.zero.master import FlatMaster, flattened
from plimsoll.service.worker.stacks.deepspeed.zero.settings import average, gradient_of
from plimsoll.service.worker.training.engine import Making

# runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE: what is reduced at once, whatever the config says of buckets.
REDUCED_AT_ONCE_ELEMENTS = 500_000_000


class WholeEngine(FlatMaster):
    """The optimizer over one flat fp32 copy; gradients are the parameters' own until the step makes them fp32."""

    def __init__(self, name: str, parameters: Iterable[nn.Parameter], *, ranks: int) -> None:
        whole = list(parameters)
        super().__init__(name, whole, flattened(whole, multiple=1).numel())
        self._ranks = ranks
        self._is_last = True
        self._making: Making = _unnamed
        # The states are made before the first step, by one step over zeros.
        self._master.grad = torch.zeros_like(self._master)
        self._inner.step()
        self._master.grad = None

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:
        """Remember how memory is named; no hook is needed."""
        self._making = making
        yield

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Take note that a micro-batch begins: gradients are reduced after the last alone."""
        self._is_last = is_last

    def end_backward(self) -> None:
        """Average the gradients over the ranks, a flat copy of so many at a time."""
        if not self._is_last:
            return
        waiting: list[torch.Tensor] = []
        for parameter in self._parameters:
            waiting.append(gradient_of(parameter))
            if sum(gradient.numel() for gradient in waiting) > REDUCED_AT_ONCE_ELEMENTS:
                self._all_reduce(waiting)
                waiting = []
        if waiting:
            self._all_reduce(waiting)

    def step(self) -> None:
        """Make one flat fp32 gradient of all, each first by itself, and update."""
        self._master.grad = _flatten_dense_tensors(  # type: ignore[no-untyped-call]
            [gradient_of(parameter).to(torch.float32) for parameter in self._parameters]
        )
        self.zero_grad()
        self._inner.step()
        self._master.grad = None
        with torch.no_grad():
            offset = 0
            for parameter in self._parameters:
                parameter.data.copy_(self._master[offset : offset + parameter.numel()].view(parameter.shape))
                offset += parameter.numel()

    def _all_reduce(self, gradients: list[torch.Tensor]) -> None:
        with self._making(Kind.COMMUNICATION):
            flat = average(_flatten_dense_tensors(gradients), self._ranks)  # type: ignore[no-untyped-call]
        offset = 0
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view(gradient.shape))
            offset += gradient.numel()


@contextlib.contextmanager
def _unnamed(kind: Kind) -> Iterator[None]:  # noqa: ARG001 - as `Making` has it
    """Name nothing: no step runs yet."""
    yield
