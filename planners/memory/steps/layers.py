"""The layers of a stage as a program goes through them: runs of like ones, of any length at once.

A run's layers are three: the first, one that stands for all between, and the last. What those between add, each adds
alike, so that a program that has gone through one of them has gone through all (`Step.each`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, LayerOnRank, Mask, mask_of


class Part(IntEnum):
    """Which of a run's layers one is; as a number, how many layers a run has at least that has it."""

    FIRST = 1
    LAST = 2
    MIDDLE = 3


UPWARDS = (Part.FIRST, Part.MIDDLE, Part.LAST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """A layer of a stage. `is_lowest` and `is_highest` say of which layouts it is the stage's own.

    `is_between` says that it stands for those between a run's ends.
    """

    bytes: LayerOnRank
    is_between: bool
    is_lowest: Mask
    is_highest: Mask
    _below: Callable[[Callable[[LayerOnRank], FloatArray], FloatArray], FloatArray]

    def buffers_below(self, otherwise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the layer below it is gathered into, and its experts; `otherwise` if there is none."""
        return self._below(lambda layer: layer.buffers[0], otherwise), self._below(_experts_buffer, NO_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Groups of layers that repeat: `unit` is one group, lowest first, and `count` how many there are, 0 and more."""

    unit: tuple[LayerOnRank, ...]
    count: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layers:
    """All layers of a stage, as runs of some; `stated` are the runs that they were made of."""

    stated: tuple[Run, ...]
    runs: tuple[RunOfLayers, ...]
    _highest: Callable[[Callable[[LayerOnRank], FloatArray], FloatArray], FloatArray]

    def highest_buffers(self) -> tuple[FloatArray, FloatArray]:
        """Return what the stage's highest layer is gathered into, and that layer's experts."""
        return self._highest(lambda layer: layer.buffers[0], NO_BYTES), self._highest(_experts_buffer, NO_BYTES)

    def every(self, *, downwards: bool = False) -> Iterator[tuple[RunOfLayers, Part, tuple[Layer, ...]]]:
        """Yield the layers that stand for all, group by group, with the run and the part of it that they are."""
        for run in reversed(self.runs) if downwards else self.runs:
            for part, group in reversed(run.layers.items()) if downwards else run.layers.items():
                yield run, part, group[::-1] if downwards else group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunOfLayers:
    """A run with its layers, part by part from the first to the last; parts that no layout has are left out."""

    count: IntArray
    most: int
    fewest: int
    layers: dict[Part, tuple[Layer, ...]] = field(default_factory=dict)
    presence: dict[Part, Mask] = field(default_factory=dict)

    @property
    def layer_count(self) -> int:
        """Return how many layers the run has at most."""
        return self.most * len(self.layers[Part.FIRST])

    def present(self, part: Part) -> Mask:
        """Return of which layouts the run has the part."""
        if part not in self.presence:
            self.presence[part] = mask_of(self.count >= part)
        return self.presence[part]


def layers_of(runs: Sequence[Run]) -> Layers:
    """Return the layers of a stage whose runs those are, lowest first."""
    made: list[RunOfLayers] = []
    for index, run in enumerate(runs):
        own = RunOfLayers(count=run.count, most=int(run.count.max()), fewest=int(run.count.min()))
        for part in UPWARDS:
            if own.most >= part:
                own.layers[part] = tuple(_layer(runs, index, part, place) for place in range(len(run.unit)))
        made.append(own)
    return Layers(stated=tuple(runs), runs=tuple(made), _highest=_of_runs(runs))


def _layer(runs: Sequence[Run], index: int, part: Part, place: int) -> Layer:
    run = runs[index]
    lowest: Mask = False
    highest: Mask = False
    if part is Part.FIRST and place == 0:
        lowest = _are_absent(runs[:index])
        below = _of_runs(runs[:index])
    else:
        below = _of_one(run.unit[place - 1])
    if part is not Part.MIDDLE and place == len(run.unit) - 1:
        highest = _are_absent(runs[index + 1 :])
        if part is Part.FIRST and highest is not False:
            is_alone = mask_of(run.count == Part.FIRST)
            if is_alone is not True:
                highest = highest * is_alone if is_alone is not False and highest is not True else is_alone
    return Layer(
        bytes=run.unit[place],
        is_between=part is Part.MIDDLE,
        is_lowest=lowest,
        is_highest=highest,
        _below=below,
    )


def _are_absent(runs: Sequence[Run]) -> Mask:
    absent: Mask = True
    for run in runs:
        if run.count.min() > 0:
            return False
        absent = absent * (run.count == 0).astype(np.float64)
    return absent


def _of_one(
    layer: LayerOnRank | None,
) -> Callable[[Callable[[LayerOnRank], FloatArray], FloatArray], FloatArray]:
    return lambda quantity, otherwise: otherwise if layer is None else quantity(layer)


def _of_runs(runs: Sequence[Run]) -> Callable[[Callable[[LayerOnRank], FloatArray], FloatArray], FloatArray]:
    """Return what asks the highest layer of the highest of these runs that has any."""

    def ask(quantity: Callable[[LayerOnRank], FloatArray], otherwise: FloatArray) -> FloatArray:
        found = otherwise
        for run in runs:
            own = quantity(run.unit[-1])
            found = own if run.count.min() > 0 else np.where(run.count > 0, own, found)
        return found

    return ask


def _experts_buffer(layer: LayerOnRank) -> FloatArray:
    return layer.buffers[1]
