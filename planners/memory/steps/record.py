"""A step written down event by event: the account of one layout, and the check that its program balances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.steps.layers import Layer, Layers, every_layer
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment
from plimsoll.planners.memory.steps.step import ITEMS, Held, Step

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
    """A program that lets go of what is gone, or keeps what it should have let go of."""


class RecordedStep(Step):
    """Writes the events of one stage of one layout down, whose sizes are single numbers; each layer is itself."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._held = dict.fromkeys(ITEMS, 0)
        self._layer: int | None = None

    def each(self, layers: Layers, *, downwards: bool = False) -> Iterator[Layer]:
        """Yield every layer by itself."""
        for _, _, group in layers.every(downwards=downwards):
            for layer in group:
                self._layer = layer.number
                yield layer
        self._layer = None

    def moments(self, moments: Sequence[Moment]) -> None:
        """Write down each of a layer's moments."""
        for moment in moments:
            held = self.take("activations", moment.name, moment.activations)
            self.drop(self.take("gradients", moment.name, moment.gradients), held)

    def _here(self, amount: FloatArray) -> FloatArray:
        return amount if self._within is None or self._within else NO_BYTES

    def _change(self, held: Held, amount: FloatArray, *, falls: bool = False) -> None:  # noqa: ARG002
        change = int(amount)
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


def at_stage(quantities: T, row: int, index: int) -> T:
    """Return the quantities of one stage of one layout of a list: single numbers, and every layer by itself.

    Arrays of a list are [stage, layout], without the stage where it makes no difference, or of one number for all.
    """
    known: dict[int, Any] = {}

    def of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _number(value, row, index)
        if isinstance(value, Layers):
            return every_layer([layer for run in value.stated for layer in int(of(run.count)) * of(run.unit)])
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
    return bool(number) if value.dtype == np.bool_ else number
