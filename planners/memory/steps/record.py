"""A step written down event by event: the account of one layout, and the check that its program balances."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.steps.events import Event, Events
from plimsoll.planners.memory.steps.layers import Layer, Layers, Part, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment, without
from plimsoll.planners.memory.steps.step import ITEMS, Held, Step

T = TypeVar("T")
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


class RecordedStep(Step):
    """Writes the events of one stage of one layout down, whose sizes are single numbers.

    Of a run's layers those between its ends are gone through once, as all others do the same (`Step.each`).

    Raises `UnbalancedStep` as soon as a piece is let go of twice or is less than nothing, and in `close` for one that
    nobody let go of.
    """

    def __init__(self, events: Events | None = None) -> None:
        super().__init__()
        self.events = Events() if events is None else events
        self._held = dict.fromkeys(ITEMS, 0)
        self._total = 0
        self._layer: int | None = None
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

    def _each_numbered(self, layers: Iterable[tuple[int, Layer]]) -> Iterator[Layer]:
        for self._layer, layer in layers:
            yield layer

    def _each_of_equals(self, layers: Iterable[tuple[int, Layer]], times: int, further: int) -> Iterator[Layer]:
        """Yield the layers of one group, and write what they did so many times more, each so many layers further on."""
        start, before = len(self.events.written), list(self._held.values())
        carried = [held.amount for held in self._carried]
        yield from self._each_numbered(layers)
        if not times:
            return
        more = tuple(now - then for now, then in zip(self._held.values(), before, strict=True))
        self.events.repeat(start, times, further=further, more=more)
        for item, change in zip(ITEMS, more, strict=True):
            self._held[item] += times * change
        self._total += times * sum(more)
        for held, amount in zip(self._carried, carried, strict=True):
            held.amount = held.amount + times * (held.amount - amount)
            self._check(held)

    def moments(self, moments: Sequence[Moment], *, unsaved: FloatArray = NO_BYTES) -> None:
        """Write down each of a layer's moments."""
        for moment in moments:
            held = self.take("activations", moment.name, without(moment.activations, unsaved))
            self.drop(self.take("gradients", moment.name, moment.gradients), held)

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

    def _change(self, held: Held, amount: FloatArray, *, falls: bool = False) -> None:  # noqa: ARG002
        self._write(held, int(amount))

    def _let_go(self, held: Held, amount: FloatArray) -> None:
        self._write(held, -int(amount))

    def _write(self, held: Held, change: int) -> None:
        if not change:
            return
        self._held[held.item] += change
        self._total += change
        self.events.written.append(
            Event(
                phase=self.phase,
                layer=self._layer,
                item=held.item,
                name=held.name,
                change=change,
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


def at_stage(quantities: T, row: int, index: int) -> T:
    """Return the quantities of one stage of one layout of a list: single numbers, and the layers that it has.

    Arrays of a list are [stage, layout], without the stage where it makes no difference, or of one number for all.
    """
    known: dict[int, Any] = {}

    def of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _number(value, row, index)
        if isinstance(value, Layers):
            counted = [(run.unit, int(of(run.count))) for run in value.stated]
            return layers_of([Run(unit=of(unit), count=np.array([count])) for unit, count in counted if count])
        if isinstance(value, tuple):
            made = [of(each) for each in value]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if is_dataclass(value) and not isinstance(value, type):
            if id(value) not in known:
                known[id(value)] = replace(
                    value, **{each.name: of(getattr(value, each.name)) for each in fields(value)}
                )
            return known[id(value)]
        return value

    made: T = of(quantities)
    return made


def _number(value: FloatArray | BoolArray, row: int, index: int) -> Any:
    if value.ndim > 1:
        number = value[row if value.shape[0] > 1 else 0, index if value.shape[1] > 1 else 0]
    else:
        number = value[index if value.size > 1 else 0] if value.ndim else value[()]
    return number.item()
