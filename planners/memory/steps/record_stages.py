"""Several stages of one layout written down at once: their programs are the same, and sizes alone differ.

The stages of a pipeline that have as many layers of each kind differ by how many micro-batches wait. A program that
runs once for all of them is as fast as for one. Of all events those are told that the account asks for: a visit's (the
events of a layer in a row) first, largest and last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, IntArray
from plimsoll.planners.memory.steps.events import Event, Events, Repeat
from plimsoll.planners.memory.steps.record import WrittenStep
from plimsoll.planners.memory.steps.step import ITEMS, Held


class _Again(NamedTuple):
    """Events from `start` until before `end` that come again, by so much `more` of each item, [item, stage]."""

    start: int
    end: int
    times: int
    further: int
    more: FloatArray


class RecordedStages(WrittenStep):
    """Writes the events of some stages down, whose sizes are arrays of one number a stage or numbers.

    It does not check that the program balances, as `record.RecordedStep` does.
    """

    def __init__(self, stages: int) -> None:
        super().__init__()
        self._held = np.zeros((len(ITEMS), stages))
        self._told: list[tuple[str, int | None, str, str]] = []
        self._changes: list[FloatArray] = []
        self._helds: list[FloatArray] = []
        self._again: list[_Again] = []

    def events(self) -> tuple[Events, ...]:
        """Return the events of each stage, of each visit those that can be the worst; what changes nothing is none."""
        if not self._told:
            return tuple(Events() for _ in range(self._held.shape[1]))
        changes, held = np.stack(self._changes).astype(np.int64), np.stack(self._helds).astype(np.int64)
        totals, worst = held.sum(axis=1), np.zeros(changes.shape, dtype=bool)
        for visit in self._visits():
            worst[visit] = _worst(changes[visit] != 0, totals[visit])
        return tuple(
            self._of_stage(places, changes[places, stage], held[places, :, stage], totals[places, stage], stage)
            for stage, places in enumerate(map(np.flatnonzero, worst.T))
        )

    def _visits(self) -> Iterator[slice]:
        """Yield the events that come one after another in one phase and layer, those that come again apart."""
        apart = {place for again in self._again for place in (again.start, again.end)}
        places = [(phase, layer) for phase, layer, _, _ in self._told]
        begin = [
            number
            for number, place in enumerate(places)
            if number == 0 or number in apart or place != places[number - 1]
        ]
        return itertools.starmap(slice, itertools.pairwise([*begin, len(places)]))

    def _of_stage(self, places: IntArray, changes: IntArray, held: IntArray, totals: IntArray, stage: int) -> Events:
        """Return the events at some places, with what each changes and what is held after it."""
        told = (self._told[place] for place in places.tolist())
        rows = zip(told, changes.tolist(), map(tuple, held.tolist()), totals.tolist(), strict=True)
        events = Events([Event(phase, layer, item, name, *changed) for (phase, layer, item, name), *changed in rows])
        for again in self._again:
            start, end = np.searchsorted(places, (again.start, again.end)).tolist()
            if end > start:
                more = tuple(again.more[:, stage].astype(np.int64).tolist())
                repeat = Repeat(
                    start=start, end=end, times=again.times, further=again.further, more=more, more_in_all=sum(more)
                )
                events.repeats.append(repeat)
        return events

    def _begin_equals(self) -> tuple[int, FloatArray]:
        return len(self._told), self._held.copy()

    def _end_equals(self, before: tuple[int, FloatArray], times: int, further: int) -> None:
        start, held = before
        more = self._held - held
        self._again.append(_Again(start, len(self._told), times, further, more))
        self._held += times * more

    def _write(self, held: Held, change: FloatArray) -> None:
        own = self._held[ITEMS.index(held.item)]
        before = own.copy()
        own += change
        self._told.append((self.phase, self._layer, held.item, held.name))
        self._changes.append(own - before)
        self._helds.append(self._held.copy())


def _worst(happen: BoolArray, totals: IntArray) -> BoolArray:
    """Return which events of one visit can be its worst or what is left of it, [event, stage].

    Those are the first, which what was held before may exceed, the first of the largest behind it, and the last.
    """
    stages = np.arange(totals.shape[1])
    first, last = happen.argmax(axis=0), len(happen) - 1 - happen[::-1].argmax(axis=0)
    behind = np.where(happen, totals, -1)
    behind[first, stages] = -1
    worst = np.zeros(happen.shape, dtype=bool)
    for place in (first, behind.argmax(axis=0), last):
        worst[place, stages] = True
    return worst & happen
