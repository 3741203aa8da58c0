"""A deep model's ledger out of those of shallow ones that differ by layers alike.

Between a model of k layers and one of a layer more the events are the same but for
stretches that the further layer adds: one to each pass over the layers. Repeating
each stretch gives the ledger of any depth, event by event, and with it every peak,
its moment and its owners. Nothing is fitted: which moment rules at the true depth
shows in the deep ledger itself.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from service.worker.dry_run.ledger import Event, Ledger, Piece

# Our own choice: so many events alike in a row are taken for the same place in two ledgers, fewer near a phase's end.
# A wrong place does not go unseen: what is grown is compared with a third ledger (`has_same_events`).
LONGEST_MATCH_EVENTS = 256
LAYER_NUMBER = re.compile(r"(?<=layers\.)\d+")

# Whether it is a release, and of what: kind, origin without the layer's number, bytes and stream.
Sign = tuple[bool, str, str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Events [`start`, `end`) of the deeper ledger, which the shallower one lacks."""

    start: int
    end: int


def event_sign(event: Event) -> Sign:
    """Return what an event has in common with the like one of another layer."""
    piece = event.piece
    origin = LAYER_NUMBER.sub("*", piece.origin)
    return (event.is_release, piece.kind.value, origin, piece.requested_bytes, piece.stream)


def added_stretches(shallow: Ledger, deep: Ledger) -> list[Stretch] | None:
    """Return what a deeper model's ledger has more, phase by phase; None where more than that differs."""
    if [(mark.step, mark.phase) for mark in shallow.marks] != [(mark.step, mark.phase) for mark in deep.marks]:
        return None
    few, many = [event_sign(event) for event in shallow.events], [event_sign(event) for event in deep.events]
    stretches: list[Stretch] = []
    for (_, first, end), (_, deep_first, deep_end) in zip(shallow.phase_ranges(), deep.phase_ranges(), strict=True):
        found = _added_in_phase(few[first:end], many[deep_first:deep_end])
        if found is None:
            return None
        stretches += [Stretch(start=deep_first + start, end=deep_first + stop) for start, stop in found]
    return stretches


def _added_in_phase(few: Sequence[Sign], many: Sequence[Sign]) -> list[tuple[int, int]] | None:
    added: list[tuple[int, int]] = []
    position = shift = 0
    while True:
        while position < len(few) and position + shift < len(many) and few[position] == many[position + shift]:
            position += 1
        place = position + shift
        if position == len(few) and place == len(many):
            return added
        length = _added_length(few[position:], many[place:])
        if not length:
            return None
        added.append((place, place + length))
        shift += length


def _added_length(few: Sequence[Sign], many: Sequence[Sign]) -> int:
    """Return after how many of `many` it goes on as `few` does; 0 where it does not."""
    surplus = len(many) - len(few)
    if not few:
        return surplus
    match = min(LONGEST_MATCH_EVENTS, len(few))
    while match:
        for length in range(1, surplus + 1):
            if many[length : length + match] == few[:match]:
                return length
        match //= 2
    return 0


def grown_ledger(deep: Ledger, stretches: Sequence[Stretch], *, repeats: int, layers: int = 1) -> Ledger:
    """Return the ledger with each stretch so many times more, each adding `layers` layers.

    A release frees the piece that stands as near as in `deep` to the newest, or to the
    oldest, of those alike that live then.
    """
    grown = _Growing()
    starts = [mark.first_event for mark in deep.marks]
    places = _release_places(deep)
    following, phase = 0, 0
    for index, event in enumerate(deep.events):
        while phase < len(starts) and starts[phase] == index:
            grown.ledger.mark(deep.marks[phase].step, deep.marks[phase].phase)
            phase += 1
        grown.append(event, places[index], deeper=0)
        if following < len(stretches) and stretches[following].end == index + 1:
            stretch = stretches[following]
            for repeat in range(1, repeats + 1):
                for repeated in range(stretch.start, stretch.end):
                    grown.append(deep.events[repeated], places[repeated], deeper=repeat * layers)
            following += 1
    for mark in deep.marks[phase:]:
        grown.ledger.mark(mark.step, mark.phase)
    return grown.ledger


def _release_places(ledger: Ledger) -> list[int]:
    """Return which of the live pieces alike an event releases: from the oldest 0, 1 ..., from the newest -1 ..."""
    live: dict[Sign, list[int]] = {}
    places = []
    for event in ledger.events:
        alike = live.setdefault(_released_sign(event), [])
        if not event.is_release:
            alike.append(event.piece.number)
            places.append(0)
            continue
        oldest = bisect.bisect_left(alike, event.piece.number)
        newest = oldest - len(alike)
        places.append(newest if -newest <= oldest + 1 else oldest)
        del alike[oldest]
    return places


def _released_sign(event: Event) -> Sign:
    return (False, *event_sign(event)[1:])


class _Growing:
    """A ledger that is being written, and what lives in it, alike by alike."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._live: dict[Sign, list[Piece]] = {}

    def append(self, event: Event, place: int, *, deeper: int) -> None:
        """Write an event like this one, of a layer so much deeper."""
        alike = self._live.setdefault(_released_sign(event), [])
        if event.is_release:
            # Where none lives the stretches were taken for others, which the comparison with a third ledger shows.
            if alike:
                self.ledger.release(alike.pop(place if -len(alike) <= place < len(alike) else -1))
            return
        piece = event.piece
        origin = piece.origin
        if deeper:
            origin = LAYER_NUMBER.sub(lambda number: str(int(number.group()) + deeper), origin)
        alike.append(
            self.ledger.allocate(piece.requested_bytes, kind=piece.kind, origin=sys.intern(origin), stream=piece.stream)
        )


def has_same_events(one: Ledger, other: Ledger) -> bool:
    """Return whether two ledgers allocate and release alike pieces in the same order, phase by phase."""
    return one.marks == other.marks and [event_sign(event) for event in one.events] == [
        event_sign(event) for event in other.events
    ]
