"""A step written down event by event: the account of one layout, and the check that its program balances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.steps.layers import Layer, Layers, Part
from plimsoll.planners.memory.steps.on_rank import Moment
from plimsoll.planners.memory.steps.step import ITEMS, NO_BYTES, Held, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of what is held: whole bytes taken or, below 0, let go of, and `held` of each item after it.

    `layer` counts from the stage's lowest; None where no one layer is at work.
    """

    phase: str
    layer: int | None
    item: str
    name: str
    change: int
    held: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return all that is held after it."""
        return sum(self.held)


class UnbalancedStep(Exception):
    """A program that lets go of what is gone, takes less than nothing, or keeps what it should have let go of."""


class RecordedStep(Step):
    """Writes the events of one stage of one layout down; layers stand for themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._held = dict.fromkeys(ITEMS, 0)
        self._layer: int | None = None

    def each(self, layers: Layers, *, downwards: bool = False) -> Iterator[Layer]:
        """Yield every layer by itself."""
        for run, part, group in layers.every(downwards=downwards):
            if part is not Part.FIRST or run.most != 1:
                raise ValueError("An account goes through each layer by itself.")
            for layer in group:
                self._layer = layer.number
                yield layer
        self._layer = None

    def moments(self, moments: Sequence[Moment]) -> None:
        """Write down each of a layer's moments."""
        for moment in moments:
            held = self.take("activations", moment.name, moment.activations)
            self.drop(self.take("gradients", moment.name, moment.gradients), held)

    def _change(self, held: Held, amount: FloatArray | float) -> None:
        super()._change(held, amount)
        self._write(held, amount)

    def _write(self, held: Held, amount: FloatArray | float) -> None:
        change = int(np.asarray(amount).sum())
        if not change:
            return
        self._held[held.item] += change
        self.events.append(
            Event(
                phase=self.phase,
                layer=self._layer,
                item=held.item,
                name=held.name,
                change=change,
                held=tuple(self._held.values()),
            )
        )


def at_stage(quantities: T, row: int, shape: tuple[int, ...]) -> T:
    """Return the quantities of one stage of one layout of a list whose stages are of `shape`, (stage, layout)."""
    return _at(quantities, row, shape)


def _at(value: Any, row: int, shape: tuple[int, ...]) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.ndim < len(shape) or shape[0] == 1 or value.shape[0] == 1 else value[row : row + 1]
    if isinstance(value, tuple):
        made = [_at(each, row, shape) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _at(getattr(value, each.name), row, shape) for each in fields(value)})
    return value
