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

from plimsoll.service.worker.recording.ledger import Event, LayerMark, Ledger, Piece

# Our own choice: so many events alike in a row are taken for the same place in two ledgers, fewer near a phase's end.
# A wrong place does not go unseen: what is grown is compared with a third ledger.
LONGEST_MATCH_EVENTS = 256
LAYER_NUMBER = re.compile(r"(?<=layers\.)\d+")

# Whether it is a release, and of what: kind, origin without the layer's number, bytes, stream and whether on the host.
Sign = tuple[bool, str, str, int, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Events [`start`, `end`) of the deeper ledger, which the shallower one lacks."""

    start: int
    end: int


def event_sign(event: Event) -> Sign:
    """Return what an event has in common with the like one of another layer."""
    piece = event.piece
    origin = LAYER_NUMBER.sub("*", piece.origin)
    return (event.is_release, piece.kind.value, origin, piece.requested_bytes, piece.stream, piece.on_host)


def added_stretches(few: Ledger, more: Ledger, most: Ledger) -> list[Stretch] | None:
    """Return what the ledger of `more` layers has beyond that of a step fewer, phase by phase.

    None where `most`, a step deeper again, is not that of `more` with every stretch once more.
    """
    ledgers = (few, more, most)
    if len({tuple((mark.step, mark.phase) for mark in ledger.marks) for ledger in ledgers}) > 1:
        return None
    signs = [[event_sign(event) for event in ledger.events] for ledger in ledgers]
    stretches: list[Stretch] = []
    for ranges in zip(*(ledger.phase_ranges() for ledger in ledgers), strict=True):
        phases = [every[first:end] for every, (_, first, end) in zip(signs, ranges, strict=True)]
        found = _proved_in_phase(*phases)
        if found is None:
            return None
        first_event = ranges[1][1]
        stretches += [Stretch(start=first_event + start, end=first_event + end) for start, end in found]
    return stretches


def _proved_in_phase(few: list[Sign], more: list[Sign], most: list[Sign]) -> list[tuple[int, int]] | None:
    """Return a phase's stretches that foretell `most`: taken for one if they can be, or else for several."""
    for as_one in (True, False):
        added = _added_in_phase(few, more, as_one=as_one)
        if added is not None and _with_repeats(more, added) == most:
            return added
    return None


def _with_repeats(more: list[Sign], added: list[tuple[int, int]]) -> list[Sign]:
    for start, end in reversed(added):
        more = more[:end] + more[start:end] + more[end:]
    return more


def _added_in_phase(few: list[Sign], many: list[Sign], *, as_one: bool) -> list[tuple[int, int]] | None:
    added: list[tuple[int, int]] = []
    position = shift = 0
    while True:
        while position < len(few) and position + shift < len(many) and few[position] == many[position + shift]:
            position += 1
        place = position + shift
        if position == len(few) and place == len(many):
            return added
        length = _added_length(few[position:], many[place:], as_one=as_one)
        if not length:
            return None
        added.append((place, place + length))
        shift += length


def _added_length(few: list[Sign], many: list[Sign], *, as_one: bool) -> int:
    """Return after how many of `many` it goes on as `few` does; 0 where it does not."""
    surplus = max(len(many) - len(few), 0)
    if not few or (as_one and many[surplus:] == few):
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
    oldest, of those alike that live then. A layer that is repeated is marked by the number
    that it has in `deep`.
    """
    grown = _Growing()
    starts = [mark.first_event for mark in deep.marks]
    places, layer_marks = _release_places(deep), _layer_marks(deep)
    following, phase = 0, 0
    for index, event in enumerate(deep.events):
        while phase < len(starts) and starts[phase] == index:
            grown.mark_layers(layer_marks.get((phase - 1, index), ()))
            grown.ledger.mark(deep.marks[phase].step, deep.marks[phase].phase)
            phase += 1
        grown.mark_layers(layer_marks.get((phase - 1, index), ()))
        grown.append(event, places[index], deeper=0)
        if following < len(stretches) and stretches[following].end == index + 1:
            stretch = stretches[following]
            for repeat in range(1, repeats + 1):
                for repeated in range(stretch.start, stretch.end):
                    grown.mark_layers(layer_marks.get((phase - 1, repeated), ()))
                    grown.append(deep.events[repeated], places[repeated], deeper=repeat * layers)
            following += 1
    grown.mark_layers(layer_marks.get((phase - 1, len(deep.events)), ()))
    for mark in deep.marks[phase:]:
        grown.ledger.mark(mark.step, mark.phase)
    return grown.ledger


def _layer_marks(ledger: Ledger) -> dict[tuple[int, int], list[int | None]]:
    """Return which layers begin where, by the place of the phase's mark and the first event."""
    found: dict[tuple[int, int], list[int | None]] = {}
    for mark in ledger.layer_marks:
        found.setdefault((mark.phase, mark.first_event), []).append(mark.layer)
    return found


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

    def mark_layers(self, layers: Sequence[int | None]) -> None:
        """Begin each of these layers here, though it be the same as the one before."""
        ledger = self.ledger
        for layer in layers:
            mark = LayerMark(first_event=len(ledger.events), phase=len(ledger.marks) - 1, layer=layer)
            ledger.layer_marks.append(mark)

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
            self.ledger.allocate(
                piece.requested_bytes,
                kind=piece.kind,
                origin=sys.intern(origin),
                stream=piece.stream,
                on_host=piece.on_host,
            )
        )
