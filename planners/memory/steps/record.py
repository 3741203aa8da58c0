"""A step written down event by event: the account of one layout, and the check that its program balances."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.steps.events import Event, Events
from plimsoll.planners.memory.steps.layers import Layer, Layers, Part
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment, without
from plimsoll.planners.memory.steps.step import ITEMS, Held, Step

# Where the engine's own calls stand, which no fault of a program is traced back to.
ENGINE = frozenset(str(file) for file in Path(__file__).parent.glob("*.py"))


class UnbalancedStep(Exception):
    """A program that lets go of what is gone, keeps what it should have let go of, or holds less than nothing."""


@dataclass(slots=True, eq=False)
class Piece(Held):
    """A piece with the line of the program that took it. One that is carried from layer to layer may be empty."""

    line: tuple[CodeType, int] | None = None
    is_carried: bool = False
    is_let_go: bool = False
    is_left: bool = False

    def __str__(self) -> str:
        """Return the piece's name and where it was taken."""
        if self.line is None:
            return f"{self.name!r} ({self.item})"
        code, number = self.line
        return f"{self.name!r} ({self.item}, taken at {Path(code.co_filename).name}:{number})"


class WrittenStep(Step, ABC):
    """Writes down what is taken and let go of, layer by layer; how, its kinds decide.

    Of a run's layers those between its ends are gone through once, as all others do the same (`Step.each`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._layer: int | None = None

    def each(self, layers: Layers, *, downwards: bool = False) -> Iterator[Layer]:
        """Yield layers, lowest first or last; what happens meanwhile is written down for each that one stands for."""
        runs = layers.runs
        lowest = dict(zip(map(id, runs), accumulate((run.layer_count for run in runs), initial=0), strict=False))
        for run, part, group in layers.every(downwards=downwards):
            count, size = run.fewest, len(group)
            place = {Part.FIRST: 0, Part.MIDDLE: count - 2 if downwards else 1, Part.LAST: count - 1}[part]
            numbers = range(lowest[id(run)] + place * size, lowest[id(run)] + (place + 1) * size)
            own = zip(reversed(numbers) if downwards else numbers, group, strict=True)
            if part is Part.MIDDLE:
                yield from self._each_of_equals(own, count - Part.MIDDLE, -size if downwards else size)
            else:
                yield from self._each_numbered(own)
        self._layer = None

    def moments(self, moments: Sequence[Moment], *, unsaved: FloatArray = NO_BYTES) -> None:
        """Write down each of a layer's moments."""
        for moment in moments:
            held = self.take("activations", moment.name, without(moment.activations, unsaved))
            self.drop(self.take("gradients", moment.name, moment.gradients), held)

    def _each_numbered(self, layers: Iterable[tuple[int, Layer]]) -> Iterator[Layer]:
        for self._layer, layer in layers:
            yield layer

    def _each_of_equals(self, layers: Iterable[tuple[int, Layer]], times: int, further: int) -> Iterator[Layer]:
        """Yield the layers of one group, and write what they did so many times more, each so many layers further on."""
        carried = [held.amount for held in self._carried]
        before = self._begin_equals()
        yield from self._each_numbered(layers)
        if times:
            self._end_equals(before, times, further)
            for held, amount in zip(self._carried, carried, strict=True):
                held.amount = held.amount + times * (held.amount - amount)

    @abstractmethod
    def _begin_equals(self) -> Any:
        """Return what is known as a group of equal layers begins."""

    @abstractmethod
    def _end_equals(self, before: Any, times: int, further: int) -> None:
        """Let all that happened since come again so many times, each so many layers further on."""

    def _change(self, held: Held, amount: FloatArray, *, falls: bool = False) -> None:  # noqa: ARG002
        if amount is not NO_BYTES:
            self._write(held, amount)

    def _let_go(self, held: Held, amount: FloatArray) -> None:
        if amount is not NO_BYTES:
            self._write(held, -amount)

    @abstractmethod
    def _write(self, held: Held, change: FloatArray) -> None:
        """Write down that a piece became so much larger."""


class RecordedStep(WrittenStep):
    """Writes the events of one stage of one layout down, whose sizes are single numbers.

    Raises `UnbalancedStep` as soon as a piece is let go of twice or is less than nothing, and in `close` for one that
    nobody let go of.
    """

    def __init__(self, events: Events | None = None) -> None:
        super().__init__()
        self.events = Events() if events is None else events
        self._held = dict.fromkeys(ITEMS, 0)
        self._total = 0
        self._pieces: list[Piece] = []

    def take(self, item: str, name: str, amount: FloatArray) -> Held:
        """Allocate a piece."""
        piece = self._piece(item, name, self._here(amount))
        self._check(piece)
        self._change(piece, piece.amount)
        return piece

    def carry(self, item: str, name: str) -> Held:
        """Return a piece, nothing as yet, that is handed from layer to layer, or grows with every one."""
        piece = self._piece(item, name, NO_BYTES, is_carried=True)
        self._carried.append(piece)
        return piece

    def drop(self, *pieces: Held | None) -> None:
        """Let go of pieces, none of them for the second time."""
        for piece in pieces:
            if isinstance(piece, Piece) and self._happens():
                if piece.is_let_go and not piece.is_carried:
                    raise UnbalancedStep(f"Lets go of {piece} twice.")
                piece.is_let_go = True
        super().drop(*pieces)

    def grow(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become so much larger."""
        if amount < 0:
            raise UnbalancedStep(f"Lets {held} grow by {amount:,} bytes.")
        super().grow(held, amount)
        self._check(held)

    def shrink(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become so much smaller."""
        if amount < 0:
            raise UnbalancedStep(f"Lets {held} shrink by {amount:,} bytes.")
        super().shrink(held, amount)
        self._check(held)

    def resize(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become as large as this, in one event."""
        super().resize(held, amount)
        self._check(held)

    def hand_over(self, source: Held, target: Held) -> None:
        """Let one piece be called by another's name from now on."""
        if source.item != target.item:
            raise UnbalancedStep(f"Hands {source} over to {target}, which is of another item.")
        super().hand_over(source, target)
        self._check(target)
        if isinstance(source, Piece) and self._happens():
            source.is_let_go = True

    def leave(self, *pieces: Held) -> None:
        """Leave pieces behind when the step is over."""
        for piece in pieces:
            if isinstance(piece, Piece) and self._happens():
                piece.is_left = True

    def close(self) -> None:
        """End the step; raises `UnbalancedStep` where a piece is still there that was not meant to be left."""
        for piece in self._pieces:
            if piece.amount and not piece.is_left:
                raise UnbalancedStep(f"Never lets go of {int(piece.amount):,} bytes of {piece}.")

    def _begin_equals(self) -> tuple[int, list[int]]:
        return len(self.events.written), list(self._held.values())

    def _end_equals(self, before: tuple[int, list[int]], times: int, further: int) -> None:
        start, held = before
        more = tuple(now - then for now, then in zip(self._held.values(), held, strict=True))
        self.events.repeat(start, times, further=further, more=more)
        for item, change in zip(ITEMS, more, strict=True):
            self._held[item] += times * change
        self._total += times * sum(more)

    def _piece(self, item: str, name: str, amount: FloatArray, *, is_carried: bool = False) -> Piece:
        piece = Piece(item, name, amount, self._within, line=_line_of_program(), is_carried=is_carried)
        self._pieces.append(piece)
        return piece

    def _check(self, held: Held) -> None:
        """Raise `UnbalancedStep` for less than nothing; what was let go of is there again."""
        if held.amount < 0:
            raise UnbalancedStep(f"Holds {int(held.amount):,} bytes of {held}.")
        if isinstance(held, Piece) and self._happens():
            held.is_let_go = False

    def _happens(self) -> bool:
        return self._within is None or bool(self._within)

    def _here(self, amount: FloatArray) -> FloatArray:
        return amount if self._happens() else NO_BYTES

    def _write(self, held: Held, change: FloatArray) -> None:
        whole = int(change)
        if not whole:
            return
        self._held[held.item] += whole
        self._total += whole
        self.events.written.append(
            Event(
                phase=self.phase,
                layer=self._layer,
                item=held.item,
                name=held.name,
                change=whole,
                held=tuple(self._held.values()),
                total=self._total,
            )
        )


def _line_of_program() -> tuple[CodeType, int]:
    """Return the code and the number of the line of the program that called the engine."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename in ENGINE:
        frame = frame.f_back
    return frame.f_code, frame.f_lineno
