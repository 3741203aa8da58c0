"""The events of one stage's step as a curve of memory over time, thinned to what a client draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from plimsoll.planners.memory.steps.events import Event, Events, Repeat
from plimsoll.planners.memory.steps.step import (
    BACKWARD,
    COMPANION_FORWARD,
    EVALUATION,
    FORWARD,
    ITEMS,
    LOADING,
    REDUCTION,
    UPDATE,
)
from plimsoll.planners.plans import LiveItems, MemoryMoment

# A companion's forward pass runs after the policy's, and an evaluation between two steps.
IN_ORDER = (LOADING, FORWARD, COMPANION_FORWARD, BACKWARD, REDUCTION, UPDATE, EVALUATION)
# In other phases no one layer is drawn by itself.
BY_LAYER = frozenset({FORWARD, BACKWARD})
OF_A_STEP = frozenset({FORWARD, BACKWARD, REDUCTION, UPDATE})
BEFORE, AT, BEHIND = range(3)
PLACE, TOTAL = attrgetter("phase", "layer"), attrgetter("total")


class _Part(NamedTuple):
    """A part of a phase: before the layers (`rank`), at one of them, or behind them."""

    phase: int
    rank: int
    layer: int | None


def moments_of(events: Events, layers: Sequence[int]) -> tuple[MemoryMoment, ...]:
    """Return the phases in their order, and of each pass every layer and what comes before and behind, at their worst.

    What is held as a part begins counts with it, and several micro-batches count as one. `layers` are the stage's own,
    by their numbers in the model, lowest first.
    """
    curve = _Curve()
    for written, repeat in events.in_parts():
        added = curve.add(written)
        if repeat is not None:
            curve.add_again(added, repeat)
    curve.end_step()
    ordered = sorted(curve.largest.items(), key=lambda entry: entry[0][:2])
    return tuple(_moment(event, part, layers) for part, event in ordered)


class _Curve:
    """Goes through events in order and keeps the largest of each part."""

    def __init__(self) -> None:
        self.largest: dict[_Part, Event] = {}
        self._phase = ""
        self._layer: int | None = None
        self._passed: set[int] = set()
        # Of the step itself: what is held outside it is no part of its curve.
        self._last: Event | None = None

    def add(self, events: Sequence[Event]) -> dict[_Part, Event]:
        """Count events; return the largest of each part among them and what was held before it."""
        added: dict[_Part, Event] = {}
        for (phase, layer), visit in groupby(events, key=PLACE):
            part, (first, *others) = self._enter(phase, layer), visit
            before = () if phase not in OF_A_STEP or self._last is None else (self._last,)
            largest = max((first, *before, *others), key=TOTAL)
            if phase in OF_A_STEP:
                self._last = others[-1] if others else first
            self._count(part, largest)
            if part not in added or largest.total > added[part].total:
                added[part] = largest
        return added

    def add_again(self, added: dict[_Part, Event], repeat: Repeat) -> None:
        """Count events that were added as they come again."""
        for times in range(1, repeat.times + 1):
            for part, event in added.items():
                layer = part.layer
                if layer is not None:
                    layer += times * repeat.further
                    self._passed.add(layer)
                known = self.largest.get(again := _Part(part.phase, part.rank, layer))
                if known is None or event.total + times * repeat.more_in_all > known.total:
                    self.largest[again] = event.again(times, repeat)
        if self._layer is not None:
            self._layer += repeat.times * repeat.further
        if self._last is not None:
            self._last = self._last.again(repeat.times, repeat)

    def end_step(self) -> None:
        """Count the update, though it take nothing: it finds what the passes leave."""
        self._count(_Part(IN_ORDER.index(UPDATE), BEFORE, None), self._last)

    def _enter(self, phase: str, layer: int | None) -> _Part:
        """Return the part that a layer is; one that a pass comes to again, behind them all, is what is there."""
        if phase != self._phase:
            self._begin(phase)
        if phase not in BY_LAYER or (layer != self._layer and layer in self._passed):
            layer = None
        self._layer = layer
        if layer is not None:
            self._passed.add(layer)
        return self._part(layer)

    def _begin(self, phase: str) -> None:
        if self._passed:
            self._count(self._part(None), self._last)
        self._phase, self._layer, self._passed = phase, None, set()
        if phase in OF_A_STEP:
            self._count(self._part(None), self._last)

    def _part(self, layer: int | None) -> _Part:
        rank = AT if layer is not None else BEHIND if self._passed else BEFORE
        return _Part(IN_ORDER.index(self._phase), rank, layer)

    def _count(self, part: _Part, event: Event | None) -> None:
        known = self.largest.get(part)
        if event is not None and (known is None or event.total > known.total):
            self.largest[part] = event


def _moment(event: Event, part: _Part, layers: Sequence[int]) -> MemoryMoment:
    return MemoryMoment(
        phase=IN_ORDER[part.phase],
        layer=None if part.layer is None else layers[part.layer],
        allocated_bytes=event.total,
        items=LiveItems(**dict(zip(ITEMS, event.held, strict=True))),
    )
