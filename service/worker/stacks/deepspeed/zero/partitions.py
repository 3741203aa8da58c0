"""Parameters in parts: each rank holds its part of every parameter, and gathers whole ones for as long as needed.

Source: DeepSpeed 0.19.8, runtime/zero/partition_parameters.py (`Init`, `_all_gather_coalesced`,
`AllGatherCoalescedHandle.wait`, `_allgather_params_coalesced`, `free_param`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.engine import Making


@dataclass(slots=True, kw_only=True, eq=False)
class Partition:
    """One parameter: its shape, this rank's part of it, and which modules use it now.

    `number` is its place among the parameters, `flight` the gather that is under way.
    """

    parameter: nn.Parameter
    number: int
    shape: torch.Size
    part: torch.Tensor
    is_persistent: bool
    is_available: bool = False
    flight: Gather | None = None
    users: set[int] = field(default_factory=set)

    @property
    def elements(self) -> int:
        """Return the elements of the whole parameter."""
        return math.prod(self.shape)

    @property
    def is_absent(self) -> bool:
        """Return whether nothing of it is gathered or on its way."""
        return not self.is_available and self.flight is None

    def free(self) -> None:
        """Let go of the whole parameter."""
        self.parameter.data = torch.empty(0, dtype=self.part.dtype)
        self.is_available = False


class Gather:
    """Several parameters gathered at once: into one buffer, out of which each is copied as the first is waited for.

    The buffer lasts until the last of them has been asked for. A single parameter is a view of its buffer, and where
    there is but one rank every parameter is its part itself.
    """

    def __init__(self, partitions: Sequence[Partition], ranks: int, making: Making) -> None:
        self._partitions = sorted(partitions, key=lambda partition: partition.number)
        self._is_complete = False
        self._making = making
        self._is_alone = ranks == 1
        with making(Kind.GATHERED_PARAMETER):
            elements = 0 if self._is_alone else sum(partition.part.numel() for partition in self._partitions)
            self._buffer = torch.empty(elements * ranks, dtype=self._partitions[0].part.dtype)
        for partition in self._partitions:
            partition.flight = self

    def wait(self) -> None:
        """Make the parameters whole, unless it is done."""
        if self._is_complete:
            return
        self._is_complete = True
        is_single = len(self._partitions) == 1
        for partition in self._partitions:
            whole = partition.part if self._is_alone else self._buffer[: partition.elements]
            if not (is_single or self._is_alone):
                # The ranks' parts end to end, one operation whatever their number.
                with self._making(Kind.GATHERED_PARAMETER):
                    whole = whole.clone()
            partition.parameter.data = whole.view(partition.shape)
            partition.is_available = True


def partitioned(
    parameters: Sequence[nn.Parameter], *, ranks: int, persistence_threshold: int
) -> tuple[list[Partition], torch.Tensor]:
    """Cut parameters into parts, and return them with the one buffer in which the parts lie that learn."""
    learning = sum(_part_elements(parameter, ranks) for parameter in parameters if parameter.requires_grad)
    buffer = torch.empty(learning, dtype=parameters[0].dtype)
    partitions, offset = [], 0
    for number, parameter in enumerate(parameters):
        length = _part_elements(parameter, ranks)
        if parameter.requires_grad:
            part = buffer[offset : offset + length]
            offset += length
        else:
            part = torch.empty(length, dtype=parameter.dtype)
        partition = Partition(
            parameter=parameter,
            number=number,
            shape=parameter.shape,
            part=part,
            is_persistent=parameter.numel() <= persistence_threshold,
        )
        partition.free()
        partitions.append(partition)
    return partitions, buffer


def gather_now(partitions: Sequence[Partition], ranks: int, making: Making) -> None:
    """Gather parameters each into a buffer of its own, and wait (`_allgather_params_coalesced`)."""
    for partition in partitions:
        if partition.is_absent:
            Gather([partition], ranks, making).wait()
            partition.flight = None


def _part_elements(parameter: nn.Parameter, ranks: int) -> int:
    return -(-parameter.numel() // ranks)
