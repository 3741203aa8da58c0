"""The events of a step: what is held after each of them, and which come again layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple


class Event(NamedTuple):
    """A change of what is held: whole bytes taken or, below 0, let go of, and `held` of each item and in `total` after.

    `layer` counts from the stage's lowest; None where no one layer is at work.
    """

    phase: str
    layer: int | None
    item: str
    name: str
    change: int
    held: tuple[int, ...]
    total: int

    def again(self, times: int, repeat: Repeat) -> Event:
        """Return the event as it comes again for the so manyth time."""
        phase, layer, item, name, change, held, total = self
        return Event(
            phase,
            None if layer is None else layer + times * repeat.further,
            item,
            name,
            change,
            tuple([own + times * more for own, more in zip(held, repeat.more, strict=True)]),
            total + times * repeat.more_in_all,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Events that come again so many `times`, of those written the ones from `start` until before `end`.

    Each time they are of layers `further` on, down where that is below 0, and `more` is held of each item.
    """

    start: int
    end: int
    times: int
    further: int
    more: tuple[int, ...]
    more_in_all: int


@dataclass(slots=True)
class Events:
    """The events of a step in their order; those that come again are `written` once."""

    written: list[Event] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)

    def __iter__(self) -> Iterator[Event]:
        """Yield every event."""
        for events, repeat in self.in_parts():
            yield from events
            if repeat is not None:
                for times in range(1, repeat.times + 1):
                    yield from (event.again(times, repeat) for event in events)

    @property
    def largest(self) -> Event:
        """Return the event after which most is held; of equals the first."""
        found = []
        for events, repeat in self.in_parts():
            most = max(events, key=_total)
            found.append(most)
            if repeat is not None and repeat.more_in_all > 0:
                found.append(most.again(repeat.times, repeat))
        return max(found, key=_total)

    def in_parts(self) -> Iterator[tuple[list[Event], Repeat | None]]:
        """Yield the events as they are written, those that come again apart, with how they do."""
        start = 0
        for repeat in self.repeats:
            if repeat.start > start:
                yield self.written[start : repeat.start], None
            yield self.written[repeat.start : repeat.end], repeat
            start = repeat.end
        if start < len(self.written):
            yield self.written[start:], None

    def append(self, later: Events) -> None:
        """Let the events of another step, that begins with nothing, come behind these."""
        begin = len(self.written)
        self.written.extend(later.written)
        self.repeats.extend(replace(again, start=again.start + begin, end=again.end + begin) for again in later.repeats)

    def repeat(self, start: int, times: int, *, further: int, more: tuple[int, ...]) -> None:
        """Let the events from `start` on come again."""
        end = len(self.written)
        if end > start:
            self.repeats.append(
                Repeat(start=start, end=end, times=times, further=further, more=more, more_in_all=sum(more))
            )


_total = attrgetter("total")
