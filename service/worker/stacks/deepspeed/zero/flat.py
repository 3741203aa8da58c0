"""DeepSpeed's ZeRO stages 1 and 2: one flat 16-bit buffer of parameters, its optimizer divided over the ranks.

Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `DeepSpeedZeroOptimizer`, with its defaults:
contiguous_gradients, reduce_scatter and use_multi_rank_bucket_allreduce on, overlap_comm off, gradients added up
in the model's own format.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.deepspeed.zero.master import FlatMaster, flattened
from plimsoll.service.worker.stacks.deepspeed.zero.settings import (
    ZeroSettings,
    accumulate_into,
    average,
    gradient_of,
    norm,
)
from plimsoll.service.worker.training.engine import Making

# `nccl_start_alignment_factor`: every rank's part begins at a multiple of four bytes.
ALIGNED_ELEMENTS = 2


class FlatEngine(FlatMaster):
    """The optimizer over the fp32 part of one rank, and the buckets that bring it its gradients.

    A rank keeps the whole gradients of all parameters that its part touches. It is the last rank, whose gradients
    come first, when all that the forward pass kept is still there. With `divides_gradients` (stage 2) they are reduced
    as the backward pass makes them, else (stage 1) all together after a step's last.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        *,
        ranks: int,
        settings: ZeroSettings,
        divides_gradients: bool,
    ) -> None:
        whole = list(parameters)
        self._flat = flattened(whole, multiple=ALIGNED_ELEMENTS * ranks)
        self._part = self._flat.numel() // ranks
        super().__init__(name, whole, self._part)
        self._ranks = ranks
        self._settings = settings
        self._divides_gradients = divides_gradients
        ends = itertools.accumulate(parameter.numel() for parameter in self._parameters)
        self._starts = {id(it): end - it.numel() for it, end in zip(self._parameters, ends, strict=True)}
        self._rank = ranks - 1
        self._own = {id(parameter) for parameter in self._parameters if self._rank in self._ranks_of(parameter)}
        self._is_last = True
        self._bucket: torch.Tensor | None = None
        self._waiting: list[nn.Parameter] = []
        self._kept: torch.Tensor | None = None
        self._kept_elements = 0
        self._summed: list[torch.Tensor] = []
        self._averaged: list[torch.Tensor] = []

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:
        """Stand on the parameters' gradients within the block."""
        self._making = making
        handles = [
            parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Take note that a micro-batch begins, the step's last or not."""
        self._is_last = is_last

    def end_backward(self) -> None:
        """Reduce what waits (`reduce_gradients`, `independent_gradient_partition_epilogue`)."""
        if not (self._divides_gradients or self._is_last):
            return
        if not self._divides_gradients:
            for parameter in self._parameters:
                self._add_to_bucket(parameter)
        self._reduce_bucket()
        own = [gradient_of(parameter) for parameter in self._parameters if id(parameter) in self._own]
        if self._summed:
            for total, gradient in zip(self._summed, own, strict=True):
                total.add_(gradient)
        else:
            self._summed = own
        if self._is_last:
            self._averaged = self._flat_part(self._summed)
            self._summed = []
        self._bucket = self._kept = None
        self.zero_grad()

    def step(self) -> None:
        """Update this rank's part of the copy, and write it back (`step`)."""
        norm(self._averaged)
        flat = _flatten_dense_tensors(self._averaged)  # type: ignore[no-untyped-call]
        self._master.grad = flat.to(torch.float32)
        del flat
        self._averaged = []
        self._inner.step()
        self._master.grad = None
        with torch.no_grad():
            self._flat[self._rank * self._part : (self._rank + 1) * self._part].copy_(self._master)

    def _ranks_of(self, parameter: nn.Parameter) -> range:
        start = self._starts[id(parameter)]
        return range(start // self._part, (start + parameter.numel() - 1) // self._part + 1)

    def _take(self, parameter: nn.Parameter) -> None:
        """Take a gradient as autograd has made it (`process_gradients`, `setup_buckets`)."""
        if self._bucket is None:
            with self._making(Kind.COMMUNICATION):
                self._bucket = torch.empty(self._settings.reduce_bucket, dtype=self._flat.dtype)
        if self._divides_gradients:
            self._add_to_bucket(parameter)

    def _add_to_bucket(self, parameter: nn.Parameter) -> None:
        """Move a gradient into the bucket, one larger than that excepted (`reduce_independent_p_g_buckets…`)."""
        elements = sum(waiting.numel() for waiting in self._waiting)
        if elements + parameter.numel() > self._settings.reduce_bucket:
            self._reduce_bucket()
            elements = 0
        if self._bucket is not None and parameter.numel() <= self._settings.reduce_bucket:
            accumulate_into(parameter, self._bucket[elements : elements + parameter.numel()])
        self._waiting.append(parameter)

    def _reduce_bucket(self) -> None:
        """Average the bucket over the ranks, and keep of it what is this rank's (`reduce_ipg_grads`)."""
        if not self._waiting:
            return
        self._average()
        for parameter in self._waiting:
            if id(parameter) in self._own:
                self._keep(parameter)
            elif self._divides_gradients:
                parameter.grad = None
        self._waiting = []

    def _average(self) -> None:
        """Average the gradients that wait, in a flat copy of as many slices as ranks share them (`average_tensor`)."""
        elements = sum(parameter.numel() for parameter in self._waiting)
        bucket = self._bucket
        if bucket is None or elements > self._settings.reduce_bucket:
            bucket = gradient_of(self._waiting[0]).view(-1)
        assigned = list(self._slices())
        flat = average(bucket[:elements], self._ranks)
        slices = [flat[start : start + length] for _, start, length in assigned]
        with self._making(Kind.COMMUNICATION):
            reduced = _flatten_dense_tensors(slices)  # type: ignore[no-untyped-call]
        for (rank, start, length), place in zip(assigned, slices, strict=True):
            if rank == self._rank:
                place.copy_(reduced[start : start + length])

    def _slices(self) -> Iterator[tuple[int, int, int]]:
        """Yield which rank has which stretch of the bucket: rank, start and length, like neighbours in one."""
        latest: tuple[int, int, int] | None = None
        filled = 0
        for parameter in self._waiting:
            start = self._starts[id(parameter)]
            end = start + parameter.numel()
            for rank in self._ranks_of(parameter):
                length = min(end, (rank + 1) * self._part) - max(start, rank * self._part)
                if latest is not None and latest[0] == rank:
                    latest = (rank, latest[1], latest[2] + length)
                else:
                    if latest is not None:
                        yield latest
                    latest = (rank, filled, length)
                filled += length
        if latest is not None:
            yield latest

    def _keep(self, parameter: nn.Parameter) -> None:
        """Move a gradient on to where the rank keeps whole gradients of its own (`copy_grads_in_partition`)."""
        if self._kept is None:
            own = sum(one.numel() for one in self._parameters if id(one) in self._own)
            with self._making(Kind.GRADIENT):
                self._kept = torch.empty(own, dtype=self._flat.dtype)
            self._kept_elements = 0
        end = self._kept_elements + parameter.numel()
        accumulate_into(parameter, self._kept[self._kept_elements : end])
        self._kept_elements = end

    def _flat_part(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's part as views, with zeros behind the last (`get_flat_partition`)."""
        views, filled = [], 0
        own = (parameter for parameter in self._parameters if id(parameter) in self._own)
        for parameter, gradient in zip(own, gradients, strict=True):
            start = max(self._rank * self._part - self._starts[id(parameter)], 0)
            length = min(parameter.numel() - start, self._part - filled)
            views.append(gradient.view(-1)[start : start + length])
            filled += length
        if filled < self._part:
            views.append(torch.zeros(self._part - filled, dtype=self._flat.dtype))
        return views
