"""A trace's ledger made small: its larger pieces in the order in which they come and go, and the total at each.

Stored are a table of unlike pieces and lists of integers. An allocation is the number of its piece in the table; a
release is -1 less the number of listed pieces that were allocated after it and still live, which is small where what
comes last goes first, and the same in every layer. `drift` is by how much the unlisted pieces have changed the device's
total since the listed event before. A packer finds both alike in step after step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.service.worker.recording.ledger import ALLOCATION_GRAIN_BYTES, Ledger, Piece

LEAST_FRACTION = 0.002
LEAST_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """One allocation of a stored ledger; `number` tells it from others that are like it."""

    number: int
    kind: str
    origin: str
    requested_bytes: int
    on_host: bool

    @property
    def device_bytes(self) -> int:
        """Return what the device's allocator counts of it."""
        rounded = -(-self.requested_bytes // ALLOCATION_GRAIN_BYTES) * ALLOCATION_GRAIN_BYTES
        return 0 if self.on_host else rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An allocation or a release, when it was, and the device's allocated bytes after it, unlisted pieces included."""

    piece: StoredPiece
    is_release: bool
    step: int
    phase: str
    allocated_bytes: int


def packed(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger's larger pieces as JSON values."""
    curve = ledger.allocated_curve()
    peak = max(range(len(curve)), key=curve.__getitem__)
    least = max(int(curve[peak] * LEAST_FRACTION), LEAST_BYTES)
    table: dict[tuple[str, str, int, bool], int] = {}
    live: list[int] = []
    events: list[int] = []
    drift: list[int] = []
    places: list[int] = []
    total = 0
    for index, event in enumerate(ledger.events):
        piece = event.piece
        if piece.requested_bytes < least:
            continue
        if event.is_release:
            place = live.index(piece.number)
            events.append(-(len(live) - place))
            del live[place]
        else:
            events.append(table.setdefault(_key(piece), len(table)))
            live.append(piece.number)
        total += _change(event.is_release, 0 if piece.on_host else piece.allocated_bytes)
        drift.append(curve[index] - total)
        total = curve[index]
        places.append(index)
    return {
        "least_bytes": least,
        "pieces": [list(key) for key in table],
        "events": events,
        "drift": drift,
        "marks": [[_listed_before(places, mark.first_event), mark.step, mark.phase] for mark in ledger.marks],
        "peak_after": _listed_before(places, peak + 1),
    }


def _key(piece: Piece) -> tuple[str, str, int, bool]:
    return (piece.kind.value, piece.origin, piece.requested_bytes, piece.on_host)


def _change(is_release: bool, held_bytes: int) -> int:
    return -held_bytes if is_release else held_bytes


def _listed_before(places: list[int], event: int) -> int:
    """Return how many listed events come before an event of the whole ledger."""
    return sum(place < event for place in places)


def unpacked(stored: Mapping[str, Any]) -> Iterator[StoredEvent]:
    """Yield the events of a stored ledger in order."""
    live: list[StoredPiece] = []
    marks = list(stored["marks"])
    step, phase, total = 0, "", 0
    for index, (event, drift) in enumerate(zip(stored["events"], stored["drift"], strict=True)):
        while marks and marks[0][0] <= index:
            _, step, phase = marks.pop(0)
        if event < 0:
            piece = live.pop(event)
        else:
            kind, origin, requested_bytes, on_host = stored["pieces"][event]
            piece = StoredPiece(
                number=index, kind=kind, origin=origin, requested_bytes=requested_bytes, on_host=on_host
            )
            live.append(piece)
        total += drift + _change(event < 0, piece.device_bytes)
        yield StoredEvent(piece=piece, is_release=event < 0, step=step, phase=phase, allocated_bytes=total)


def live_at_peak(stored: Mapping[str, Any]) -> list[StoredPiece]:
    """Return the listed pieces that live on the device at the ledger's peak, in the order of their allocation."""
    live: dict[int, StoredPiece] = {}
    for index, event in enumerate(unpacked(stored)):
        if index >= stored["peak_after"]:
            break
        if event.is_release:
            del live[event.piece.number]
        else:
            live[event.piece.number] = event.piece
    return [piece for piece in live.values() if not piece.on_host]
