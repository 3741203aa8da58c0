"""The planner's own events replayed through the model of the caching allocator, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.choice import OUTSIDE_STEPS, prepared
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.stream_pools import GATHERED, REDUCED
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.layers import Run, layers_of
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import Held
from plimsoll.service.worker.recording.allocator import CachingAllocator

STATES = "optimizer states"
# What is there before a step and after it.
LASTING = frozenset({
    "parameters", "errors of compression", "empty gradients", "head's whole input", "P2P buffers",
    "gradients of the micro-batches before", STATES,
})  # fmt: skip
STEPS = 2


class Change(NamedTuple):
    """A piece becomes so many bytes larger or, below 0, smaller; or all of it becomes part of the piece `into`."""

    piece: Held
    change: int
    into: Held | None = None


class StepOfPieces(RecordedStep):
    """A recorded step that keeps which piece each event is of."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    def hand_over(self, source: Held, target: Held) -> None:
        """Let one piece be called by another's name from now on."""
        self.changes.append(Change(source, 0, into=target))
        super().hand_over(source, target)

    def _write(self, held: Held, change: FloatArray) -> None:
        super()._write(held, change)
        if change:
            self.changes.append(Change(held, int(change)))


@dataclass(slots=True)
class Replay:
    """Pieces as blocks of an allocator, cut into `block_bytes` at most where that is not 0.

    A piece that shrinks lets go of whole blocks, and of one more in whose place the rest of it is allocated.
    """

    allocator: CachingAllocator
    block_bytes: int
    _blocks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _number: int = 0

    def grow(self, piece: Held, amount: int) -> None:
        """Allocate so many bytes of a piece, on the stream of its pool."""
        stream = 1 if piece.name in GATHERED else 2 if piece.name in REDUCED else 0
        for size in self._sizes(amount):
            self._number += 1
            self.allocator.allocate(self._number, size, stream=stream)
            self._blocks.setdefault(id(piece), []).append((self._number, size))

    def shrink(self, piece: Held, amount: int) -> None:
        """Let go of so many bytes of a piece, those that came last first."""
        blocks = self._blocks.get(id(piece), [])
        while amount and blocks:
            number, size = blocks.pop()
            self.allocator.release(number)
            if size > amount:
                self.grow(piece, size - amount)
            amount -= min(size, amount)

    def hand_over(self, source: Held, target: Held) -> None:
        """Let a piece's blocks be another's."""
        self._blocks.setdefault(id(target), []).extend(self._blocks.pop(id(source), []))

    def drop(self, pieces: Sequence[Held]) -> None:
        """Let go of all of some pieces."""
        for piece in pieces:
            for number, _ in self._blocks.pop(id(piece), []):
                self.allocator.release(number)

    def _sizes(self, amount: int) -> Iterator[int]:
        if not self.block_bytes:
            yield amount
            return
        whole, rest = divmod(amount, self.block_bytes)
        yield from (self.block_bytes for _ in range(whole))
        if rest:
            yield rest


def reserved_by_events(asked: Question, row: int, *, block_bytes: int, expandable_segments: bool) -> int:
    """Return what the events of one stage of the first layout make the allocator reserve in two steps.

    The optimizer's states come at the end of the first, as they do in a run.
    """
    step = StepOfPieces()
    for program, quantities, _ in prepared(asked):
        if program is not OUTSIDE_STEPS:
            program.run(step, each_by_itself(at_stage(quantities, row, 0)))
    replay = Replay(CachingAllocator(expandable_segments=expandable_segments), block_bytes)
    for number in range(STEPS):
        _replay_step(step.changes, replay, is_first=not number)
    return replay.allocator.peak_reserved_bytes


def each_by_itself(stage: Any) -> Any:
    """Return the quantities of one stage of one layout in runs of one layer, of which none stands for another."""
    every = [own for run in stage.layers.stated for own in int(run.count.max()) * run.unit]
    return replace(stage, layers=layers_of([Run(unit=(own,), count=np.ones(1, dtype=np.int64)) for own in every]))


def _replay_step(changes: Sequence[Change], replay: Replay, *, is_first: bool) -> None:
    states: list[Change] = []
    for each in changes:
        if each.into is not None:
            replay.hand_over(each.piece, each.into)
        elif each.change < 0:
            replay.shrink(each.piece, -each.change)
        elif each.piece.name == STATES:
            states.append(each)
        elif is_first or each.piece.name not in LASTING:
            replay.grow(each.piece, each.change)
    for each in states if is_first else ():
        replay.grow(each.piece, each.change)
    replay.drop([each.piece for each in changes if each.piece.name not in LASTING])
