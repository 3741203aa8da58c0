"""When ZeRO-3 gathers parameters and lets go of them.

The first forward and backward pass are recorded; from the next on parameters are gathered ahead in that order, and
kept where they will soon be used again.

Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, `PartitionedParameterCoordinator`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from torch import nn

from plimsoll.service.worker.stacks.deepspeed.zero.partitions import Gather, Partition
from plimsoll.service.worker.stacks.deepspeed.zero.settings import ZeroSettings
from plimsoll.service.worker.training.engine import Making

NEVER = -1


class Coordinator:
    """Gathers what a module needs as it begins, and what the next ones need ahead of them."""

    def __init__(self, partitions: Sequence[Partition], *, ranks: int, settings: ZeroSettings, making: Making) -> None:
        self._of_parameter = {id(partition.parameter): partition for partition in partitions}
        self._ranks, self._settings, self._making = ranks, settings, making
        self._recorded: list[nn.Module] = []
        self._is_recording = False
        self._is_complete = False
        self._order: list[tuple[Partition, int]] = []
        self._queue: collections.deque[tuple[Partition, int]] = collections.deque()
        self._latest: dict[int, int] = {}
        self._position = 0
        self._available_elements = 0
        self._backward: dict[int, nn.Module] = {}
        self._recomputed: dict[int, set[int]] = collections.defaultdict(set)

    def begin_pass(self) -> None:
        """Take note that a forward pass of the whole model begins (`reset_step`)."""
        for partition in self._of_parameter.values():
            if partition.flight is not None:
                partition.flight.wait()
                partition.flight = None
                self._release(partition)
        if self._is_recording:
            self._is_recording, self._is_complete = False, True
            self._order = [
                (partition, position)
                for position, module in enumerate(self._recorded)
                for partition in self._partitions_of(module)
            ]
        elif not self._is_complete:
            self._is_recording = True
        self._queue = collections.deque(self._order)
        self._latest = {}
        self._position = 0
        self._available_elements = 0

    def fetch(self, module: nn.Module, *, is_forward: bool, is_recompute: bool = False) -> None:
        """Make a module's parameters whole, and begin to gather the next ones' (`fetch_sub_module`)."""
        if self._is_recording:
            self._recorded.append(module)
        if not is_forward:
            self._backward[id(module)] = module
        needed = self._partitions_of(module)
        self._gather(needed)
        for partition in needed:
            partition.users.add(id(module))
            if is_recompute and self._backward and not partition.parameter.requires_grad:
                # What is frozen has no gradient whose making would end its use: the module that recomputes holds it.
                holder = next(reversed(self._backward))
                self._recomputed[holder].add(id(partition.parameter))
                partition.users.add(holder)
            if partition.flight is not None:
                partition.flight.wait()
                partition.flight = None
        if self._is_complete:
            self._pass_over(needed)
            self._gather_ahead()
        self._position += 1

    def release(self, module: nn.Module, *, is_forward: bool) -> None:
        """Let go of a module's parameters, unless they are soon used again (`release_sub_module`)."""
        concerned = {id(partition.parameter): partition for partition in self._partitions_of(module)}
        going = self._to_release(module) if self._is_complete else set(concerned)
        if not is_forward:
            again = self._recomputed.pop(id(module), set())
            concerned |= {address: self._of_parameter[address] for address in again}
            going |= {address for address in again if not self._of_parameter[address].is_persistent}
            self._backward.pop(id(module), None)
        for address, partition in concerned.items():
            partition.users.discard(id(module))
            if address in going:
                self._release(partition)

    def release_leftovers(self) -> None:
        """Let go of what modules hold whose backward pass had no end to see (`release_backward_leftovers`)."""
        while self._backward:
            _, module = self._backward.popitem()
            addresses = {id(partition.parameter) for partition in self._partitions_of(module)}
            for address in addresses | self._recomputed.pop(id(module), set()):
                partition = self._of_parameter[address]
                partition.users.discard(id(module))
                if not partition.is_persistent:
                    self._release(partition)

    def release_all(self) -> None:
        """Let go of every parameter (`release_and_reset_all`)."""
        for partition in self._of_parameter.values():
            if partition.flight is not None:
                partition.flight.wait()
                partition.flight = None
            partition.users.clear()
            self._release(partition)

    def _partitions_of(self, module: nn.Module) -> list[Partition]:
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        return sorted((self._of_parameter[address] for address in own), key=lambda partition: partition.number)

    def _gather(self, partitions: Iterable[Partition]) -> None:
        absent = [partition for partition in partitions if partition.is_absent]
        if absent:
            self._available_elements += sum(partition.elements for partition in absent)
            for dtype in {partition.part.dtype for partition in absent}:
                Gather([one for one in absent if one.part.dtype is dtype], self._ranks, self._making)

    def _pass_over(self, needed: Sequence[Partition]) -> None:
        """Take from the queue what the module needs, so that it is not gathered ahead later."""
        unseen = [one for one in needed if self._latest.get(id(one), NEVER) < self._position]
        passed: set[int] = set()
        while self._queue and len(passed) < len(unseen):
            partition, position = self._queue.popleft()
            self._latest[id(partition)] = position
            passed.add(id(partition))

    def _gather_ahead(self) -> None:
        most = min(self._settings.most_live - self._available_elements, self._settings.prefetch_bucket)
        ahead: dict[int, Partition] = {}
        elements = 0
        while self._queue and elements < most:
            partition, position = self._queue.popleft()
            self._latest[id(partition)] = max(self._latest.get(id(partition), NEVER), position)
            if partition.is_absent and id(partition) not in ahead:
                ahead[id(partition)] = partition
                elements += partition.elements
        self._gather(ahead.values())

    def _to_release(self, module: nn.Module) -> set[int]:
        """Return which of a module's parameters are not needed before so many elements have been used."""
        going = {
            id(partition.parameter)
            for partition in self._partitions_of(module)
            if not partition.is_persistent and self._latest.get(id(partition), NEVER) <= self._position
        }
        passed = 0
        for following in self._recorded[self._position :]:
            if passed >= self._settings.reuse_distance or not going:
                break
            for partition in self._partitions_of(following):
                going.discard(id(partition.parameter))
                passed += partition.elements
        return going

    def _release(self, partition: Partition) -> None:
        if partition.is_available and not partition.users:
            partition.free()
            self._available_elements -= partition.elements
