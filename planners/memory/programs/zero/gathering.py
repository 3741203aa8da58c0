"""How DeepSpeed's stage 3 gathers parameters, module call by module call; all in elements.

From the second micro-batch on the engine knows in which order modules are called, and gathers ahead with every call
until so much is gathered (runtime/zero/partitioned_param_coordinator.py, `_fetch_sub_module_impl`, 333, and
`__params_to_release`, 638). It counts what is ahead in elements, so that nothing here depends on the layout.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

# stage3_param_persistence_threshold: smaller ones stay gathered from step to step.
PERSISTENT_ELEMENTS = 100_000
# stage3_max_reuse_distance.
REUSE_DISTANCE = 1_000_000_000
NEVER = -1


class Status(Enum):
    """Where a parameter is."""

    CUT = "cut"
    IN_FLIGHT = "in flight"
    WHOLE = "whole"


@dataclass(slots=True, eq=False)
class _Group:
    """Parameters gathered into one storage, each copied out of it as the first of them is waited for."""

    members: list[_Parameter]
    waiting: int
    is_copied: bool = False

    @property
    def elements(self) -> int:
        return sum(parameter.elements for parameter in self.members)


@dataclass(slots=True, eq=False)
class _Parameter:
    elements: int
    status: Status = Status.CUT
    used_until: int = NEVER
    is_pinned: bool = False
    group: _Group | None = None
    uses: list[int] = field(default_factory=list)


class Coordinator:
    """Follows the calls of one micro-batch, `calls` in their order: which parameters each module has of its own.

    The engine's first micro-batch `is_recording` them: then nothing is gathered ahead, nor kept for what comes.
    `turn` is the first one of the backward pass, and `leaves` say which calls are of modules without hooks within.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        calls: Sequence[Sequence[int]],
        leaves: Sequence[bool],
        turn: int,
        *limits: int,
        is_recording: bool,
    ) -> None:
        self._turn = turn
        self._is_recording = is_recording
        self._most_live, self._bucket = limits
        self._parameters = [_Parameter(elements) for elements in sizes]
        self._queue = [(number, step) for step, call in enumerate(calls) for number in call]
        self._next = 0
        passed = [sum(sizes[number] for number in call) for call in calls]
        self._passed = [0, *itertools.accumulate(passed)]
        own = [0 if is_leaf else elements for elements, is_leaf in zip(passed, leaves, strict=True)]
        self._passed_by_others = [0, *itertools.accumulate(own)]
        for number, step in self._queue:
            self._parameters[number].uses.append(step)
        self._live = 0
        self._step = 0
        self._finished: list[int] = []
        self.held = 0
        self.pulled = 0

    def fetch(self, numbers: Sequence[int]) -> int:
        """Gather a module's parameters and some ahead; return the most that is gathered meanwhile.

        `pulled` is then what the larger gathering of the two is of.
        """
        self.pulled = 0
        own = [self._parameters[number] for number in numbers]
        self._gather([parameter for parameter in own if parameter.status is Status.CUT])
        for parameter in own:
            self._wait(parameter)
        most = self.held
        self.held -= sum(self._finished)
        self._finished = []
        if not self._is_recording:
            self._pass_by(own)
            self._gather_ahead()
        self._step += 1
        return max(most, self.held)

    def release(self, numbers: Sequence[int], pinned: Sequence[int] = (), *, is_leaf: bool = False) -> None:
        """Let go of a module's parameters that are not used again soon; the storages of the `pinned` ones stay.

        As one is let go of whose submodules have no hooks, what comes is looked at with all that it has within, and
        the whole model is the first to be differentiated; for all others such a module has nothing of its own.
        """
        passed = self._passed if is_leaf else self._passed_by_others
        is_forward = self._step <= self._turn and not self._is_recording
        if is_leaf and is_forward and passed[self._turn] - passed[self._step] < REUSE_DISTANCE:
            return
        for number in numbers:
            parameter = self._parameters[number]
            if parameter.status is Status.WHOLE and not self._is_used_soon(parameter, passed):
                parameter.status = Status.CUT
                self._live -= parameter.elements
                if number in pinned:
                    parameter.is_pinned = True
                else:
                    self.held -= parameter.elements

    def unpin(self, numbers: Sequence[int]) -> None:
        """Let go of storages that were only saved for the backward pass that has now been."""
        for number in numbers:
            parameter = self._parameters[number]
            if parameter.is_pinned:
                parameter.is_pinned = False
                self.held -= parameter.elements

    def _gather(self, parameters: Sequence[_Parameter]) -> None:
        if not parameters:
            return
        elements = sum(parameter.elements for parameter in parameters)
        self.pulled = max(self.pulled, elements)
        group = _Group(list(parameters), waiting=len(parameters)) if len(parameters) > 1 else None
        for parameter in parameters:
            parameter.status, parameter.group = Status.IN_FLIGHT, group
        self.held += elements
        self._live += elements

    def _wait(self, parameter: _Parameter) -> None:
        """Wait for a parameter's gathering; its group's storage goes once all of the group are waited for."""
        group, parameter.group = parameter.group, None
        if group is None:
            parameter.status = Status.WHOLE
            return
        if not group.is_copied:
            group.is_copied = True
            self.held += group.elements
            for member in group.members:
                member.status = Status.WHOLE
        group.waiting -= 1
        if not group.waiting:
            self._finished.append(group.elements)

    def _pass_by(self, own: Sequence[_Parameter]) -> None:
        """Take a module's uses off the queue that no gathering ahead has taken."""
        missing = {id(parameter) for parameter in own if parameter.used_until < self._step}
        while missing and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._next += 1
            self._parameters[number].used_until = step
            missing.discard(id(self._parameters[number]))

    def _gather_ahead(self) -> None:
        limit = min(self._most_live - self._live, self._bucket)
        taken: list[_Parameter] = []
        elements = 0
        while self._next < len(self._queue) and elements < limit:
            number, step = self._queue[self._next]
            self._next += 1
            parameter = self._parameters[number]
            parameter.used_until = max(parameter.used_until, step)
            if parameter.status is Status.CUT and parameter not in taken:
                taken.append(parameter)
                elements += parameter.elements
        self._gather(taken)

    def _is_used_soon(self, parameter: _Parameter, passed: Sequence[int]) -> bool:
        if self._is_recording:
            return False
        if parameter.used_until > self._step:
            return True
        place = bisect.bisect_left(parameter.uses, self._step)
        if place == len(parameter.uses):
            return False
        return passed[parameter.uses[place]] - passed[self._step] < REUSE_DISTANCE
