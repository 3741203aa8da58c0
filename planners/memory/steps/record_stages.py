"""Several stages of one layout written down at once: their programs are the same, and sizes alone differ.

The stages of a pipeline that have as many layers of each kind differ by how many micro-batches wait. A program that
runs once for all of them is as fast as for one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
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
        """Return the events of each stage; what changes nothing on it is none."""
        if not self._told:
            return tuple(Events() for _ in range(self._held.shape[1]))
        changes, held = np.stack(self._changes).astype(np.int64), np.stack(self._helds).astype(np.int64)
        return tuple(self._of_stage(changes[:, stage], held[:, :, stage], stage) for stage in range(changes.shape[1]))

    def _of_stage(self, changes: Any, held: Any, stage: int) -> Events:
        places = np.flatnonzero(changes)
        rows = zip(
            places.tolist(),
            changes[places].tolist(),
            held[places].tolist(),
            held[places].sum(axis=1).tolist(),
            strict=True,
        )
        events = Events([Event(*self._told[place], change, tuple(own), total) for place, change, own, total in rows])
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
