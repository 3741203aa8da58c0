"""DeepSpeed's ZeRO stage 3: parameters, gradients and optimizer in parts, reduced in buckets, updated in sub-groups.

Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, `DeepSpeedZeroOptimizer_Stage3`, and
runtime/comm/coalesced_collectives.py, `reduce_scatter_coalesced`, with its defaults: contiguous_gradients,
reduce_scatter and overlap_comm on, gradients added up in the model's own format.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.deepspeed.zero.coordinator import Coordinator
from plimsoll.service.worker.stacks.deepspeed.zero.hooks import coordinated
from plimsoll.service.worker.stacks.deepspeed.zero.partitions import Partition, gather_now, partitioned
from plimsoll.service.worker.stacks.deepspeed.zero.settings import (
    ZeroSettings,
    accumulate_into,
    average,
    gradient_of,
    norm,
)
from plimsoll.service.worker.training.engine import Making
from plimsoll.service.worker.training.optimizers import replicated_optimizer


class ShardedEngine:
    """The first rank's parts of everything; a part is as long on every rank, the last one's padded."""

    def __init__(self, name: str, model: nn.Module, *, ranks: int, settings: ZeroSettings) -> None:
        self._model, self._ranks, self._settings = model, ranks, settings
        self._partitions, self._parts = partitioned(
            list(model.parameters()), ranks=ranks, persistence_threshold=settings.persistence_threshold
        )
        self._learning = [partition for partition in self._partitions if partition.parameter.requires_grad]
        self._groups = list(_sub_groups(self._learning, settings.sub_group))
        self._masters = [
            nn.Parameter(torch.empty(sum(one.part.numel() for one in group), dtype=torch.float32))
            for group in self._groups
        ]
        self._inner = replicated_optimizer(name, self._masters)
        self._bucket = torch.empty(settings.reduce_bucket, dtype=self._parts.dtype)
        self._gradients = torch.zeros(self._parts.numel(), dtype=settings.accumulation_dtype)
        places = torch.split(self._gradients, [one.part.numel() for one in self._learning])
        self._places = dict(zip(self._learning, places, strict=True))
        self._waiting: list[Partition] = []
        self._is_first = True

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:
        """Stand on modules and gradients within the block."""
        self._making = making
        self._coordinator = Coordinator(self._partitions, ranks=self._ranks, settings=self._settings, making=making)
        handles = [
            one.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, one=one: self._take(one)
            )
            for one in self._learning
        ]
        try:
            with coordinated(self._model, self._coordinator):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Take note that a micro-batch begins."""

    def end_backward(self) -> None:
        """Reduce what waits (`independent_gradient_partition_epilogue`)."""
        self._reduce_bucket()
        self._coordinator.release_leftovers()
        self._is_first = False

    def step(self) -> None:
        """Update one sub-group after the other, then gather what stays gathered."""
        self._is_first = True
        self._coordinator.release_all()
        averaged = [[self._places[one] for one in group] for group in self._groups]
        for gradients in averaged:
            norm(gradients)
        self.zero_grad()
        offset = 0
        for master, gradients in zip(self._masters, averaged, strict=True):
            flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
            master.grad = flat.to(torch.float32)
            master.grad.mul_(1.0)
            # The others have no gradient, so the optimizer passes over them.
            self._inner.step()
            master.grad = None
            with torch.no_grad():
                self._parts[offset : offset + master.numel()].copy_(master)
            offset += master.numel()
        gather_now([one for one in self._partitions if one.is_persistent], self._ranks, self._making)

    def zero_grad(self) -> None:
        """Drop the parameters' own gradients."""
        for one in self._learning:
            one.parameter.grad = None

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the fp32 parts and the states' tensors, once they exist."""
        for master in self._masters:
            yield "fp32 part", master
        yield from self._inner.named_states()

    def named_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parts of the parameters."""
        yield "parameter parts", self._parts
        for one in self._partitions:
            if not one.parameter.requires_grad:
                yield "frozen parameter part", one.part

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return the bucket, which stands for good."""
        return [("gradient bucket", self._bucket)]

    def named_gradients(self) -> list[tuple[str, torch.Tensor]]:
        """Return the parts of the gradients, which stand for good."""
        return [("gradient parts", self._gradients)]

    def _take(self, one: Partition) -> None:
        """Move a gradient into the bucket, one larger than that excepted (`__add_grad_to_ipg_bucket`)."""
        elements = sum(waiting.elements for waiting in self._waiting)
        if self._waiting and elements + one.elements > self._settings.reduce_bucket:
            self._reduce_bucket()
            elements = 0
        if elements + one.elements <= self._settings.reduce_bucket:
            accumulate_into(one.parameter, self._bucket[elements : elements + one.elements])
        self._waiting.append(one)

    def _reduce_bucket(self) -> None:
        """Reduce-scatter a copy of the bucket, padded to the ranks, and add up this rank's parts."""
        if not self._waiting:
            return
        waiting = sorted(self._waiting, key=lambda one: one.number)
        gradients = [gradient_of(one.parameter).view(-1) for one in waiting]
        is_in_place = len(waiting) == 1 and waiting[0].elements % self._ranks == 0
        with self._making(Kind.COMMUNICATION):
            flat = gradients[0] if is_in_place else self._padded_copy(waiting)
        reduced = average(flat, self._ranks)[: flat.numel() // self._ranks]
        del flat, gradients
        offset = 0
        for one in waiting:
            length = one.part.numel()
            part = reduced[offset : offset + length]
            if self._is_first:
                self._places[one].copy_(part)
            else:
                self._places[one].add_(part)
            offset += length
            one.parameter.grad = None
        self._waiting = []

    def _padded_copy(self, waiting: list[Partition]) -> torch.Tensor:
        """Return the gradients in one copy, cut by ranks first: one operation, whatever the number of ranks."""
        return torch.empty(sum(one.part.numel() for one in waiting) * self._ranks, dtype=self._parts.dtype)


def _sub_groups(partitions: list[Partition], most: int) -> Iterator[list[Partition]]:
    """Yield consecutive partitions, of each as many as it takes to reach so many elements."""
    group: list[Partition] = []
    for partition in partitions:
        group.append(partition)
        if sum(one.part.numel() for one in group) >= most:
            yield group
            group = []
    if group:
        yield group
