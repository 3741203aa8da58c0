"""What was allocated and released, in order, and what each piece was for.

Pure bookkeeping without torch: the tracker writes it while the step runs, and
every figure of the result (peaks, breakdowns, the curve) is read from it after.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

# torch rounds every request up to this many bytes (kMinBlockSize in
# c10/cuda/CUDACachingAllocator.cpp), and its counters count rounded bytes.
ALLOCATION_GRAIN_BYTES = 512


class Kind(StrEnum):
    """What a piece of memory was for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GATHERED_PARAMETER = "gathered_parameter"
    CAST_PARAMETER = "cast_parameter"
    GRADIENT = "gradient"
    UNREDUCED_GRADIENT = "unreduced_gradient"
    DUMMY_GRADIENT = "dummy_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    OPTIMIZER_TEMPORARY = "optimizer_temporary"
    INPUT = "input"
    FORWARD_ACTIVATION = "forward_activation"
    BACKWARD_ACTIVATION = "backward_activation"
    LOGITS = "logits"
    COMMUNICATION = "communication"
    KV_CACHE = "kv_cache"


# The plan's item that each kind belongs to. Parameters in the form they are
# computed with (gathered from the shards, or cast) come and go with the
# collectives that make them, and are counted with those. A dummy gradient stands
# for work that was done elsewhere, and the plan counts it with the activations.
ITEM_OF_KIND = {
    Kind.PARAMETER: "parameters",
    Kind.BUFFER: "parameters",
    Kind.CAST_PARAMETER: "parameters",
    Kind.GATHERED_PARAMETER: "communication",
    Kind.GRADIENT: "gradients",
    Kind.UNREDUCED_GRADIENT: "gradients",
    Kind.DUMMY_GRADIENT: "activations",
    Kind.OPTIMIZER_STATE: "optimizer",
    Kind.OPTIMIZER_TEMPORARY: "optimizer",
    Kind.INPUT: "activations",
    Kind.FORWARD_ACTIVATION: "activations",
    Kind.BACKWARD_ACTIVATION: "activations",
    Kind.LOGITS: "logits",
    Kind.COMMUNICATION: "communication",
    Kind.KV_CACHE: "kv_cache",
}
# Those of a training plan, which has no cache.
ITEMS = ("parameters", "gradients", "optimizer", "activations", "logits", "communication")


def rounded_bytes(requested_bytes: int) -> int:
    """Return the bytes the allocator hands out for a request."""
    return -(-requested_bytes // ALLOCATION_GRAIN_BYTES) * ALLOCATION_GRAIN_BYTES


@dataclass(slots=True, kw_only=True, eq=False)
class Piece:
    """One allocation. `kind` may be corrected while it lives, as its use shows.

    What is `on_host` counts in no peak of the device's.
    """

    number: int
    requested_bytes: int
    kind: Kind
    origin: str
    stream: int
    on_host: bool = False

    @property
    def allocated_bytes(self) -> int:
        """Return its bytes as the device's allocator counts them; the host's are those that were asked for."""
        return self.requested_bytes if self.on_host else rounded_bytes(self.requested_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An allocation, or the release of it."""

    piece: Piece
    is_release: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMark:
    """A phase of a step begins before the event with index `first_event`."""

    first_event: int
    step: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMark:
    """A layer is at work from before the event with index `first_event`, or, where `layer` is None, no one layer is.

    `phase` is the place of its phase's mark among the ledger's.
    """

    first_event: int
    phase: int
    layer: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment of most allocated bytes among some events, and what was alive."""

    event: int
    allocated_bytes: int
    live: tuple[Piece, ...]

    def bytes_by_kind(self) -> dict[str, int]:
        """Return the live bytes of each kind that has any."""
        totals: dict[str, int] = {}
        for piece in self.live:
            totals[piece.kind.value] = totals.get(piece.kind.value, 0) + piece.allocated_bytes
        return dict(sorted(totals.items()))

    def bytes_by_item(self) -> dict[str, int]:
        """Return the live bytes of each of the plan's items; they add up to the peak."""
        totals = dict.fromkeys(ITEMS, 0)
        for piece in self.live:
            item = ITEM_OF_KIND[piece.kind]
            totals[item] = totals.get(item, 0) + piece.allocated_bytes
        return totals


@dataclass(slots=True)
class Ledger:
    """Allocations and releases in the order in which they happened."""

    events: list[Event] = field(default_factory=list)
    marks: list[PhaseMark] = field(default_factory=list)
    layer_marks: list[LayerMark] = field(default_factory=list)
    _numbers: int = 0

    def allocate(
        self, requested_bytes: int, *, kind: Kind, origin: str, stream: int = 0, on_host: bool = False
    ) -> Piece:
        """Record an allocation and return it, to be released later."""
        self._numbers += 1
        piece = Piece(
            number=self._numbers,
            requested_bytes=requested_bytes,
            kind=kind,
            origin=sys.intern(origin),
            stream=stream,
            on_host=on_host,
        )
        self.events.append(Event(piece=piece, is_release=False))
        return piece

    def release(self, piece: Piece) -> None:
        """Record that a piece was freed."""
        self.events.append(Event(piece=piece, is_release=True))

    def mark(self, step: int, phase: str) -> None:
        """Begin a phase."""
        self.marks.append(PhaseMark(first_event=len(self.events), step=step, phase=phase))

    def mark_layer(self, layer: int | None) -> None:
        """Begin a layer within the phase, or what belongs to none; one that is at work already goes on."""
        phase, last = len(self.marks) - 1, self.layer_marks[-1] if self.layer_marks else None
        if last is None or (last.phase, last.layer) != (phase, layer):
            self.layer_marks.append(LayerMark(first_event=len(self.events), phase=phase, layer=layer))

    def so_far(self) -> Ledger:
        """Return what is recorded now, without what is released later, when the model itself is let go of."""
        return Ledger(
            events=list(self.events),
            marks=list(self.marks),
            layer_marks=list(self.layer_marks),
            _numbers=self._numbers,
        )

    def phase_ranges(self) -> Iterator[tuple[PhaseMark, int, int]]:
        """Yield each mark with the first event of its phase and the one after its last."""
        ends = [mark.first_event for mark in self.marks[1:]] + [len(self.events)]
        for mark, end in zip(self.marks, ends, strict=True):
            yield mark, mark.first_event, end

    def allocated_curve(self, *, on_host: bool = False) -> list[int]:
        """Return the device's allocated bytes, or the host's, after each event."""
        curve: list[int] = []
        allocated_bytes = 0
        for event in self.events:
            change = event.piece.allocated_bytes if event.piece.on_host is on_host else 0
            allocated_bytes += -change if event.is_release else change
            curve.append(allocated_bytes)
        return curve

    def peak(self, first_event: int = 0, end_event: int | None = None, *, on_host: bool = False) -> Peak:
        """Return the first moment of most bytes of the device, or of the host, within a range of events.

        What is alive when the range begins counts: an empty range, or one that
        only releases, peaks at its start.
        """
        curve = self.allocated_curve(on_host=on_host)
        if not curve:
            return EMPTY_PEAK
        start = max(first_event - 1, 0)
        end = max(len(curve) if end_event is None else end_event, start + 1)
        best = max(range(start, end), key=curve.__getitem__)
        return Peak(event=best, allocated_bytes=curve[best], live=self._live_after(best, on_host=on_host))

    def _live_after(self, event_index: int, *, on_host: bool = False) -> tuple[Piece, ...]:
        live: dict[int, Piece] = {}
        for event in self.events[: event_index + 1]:
            if event.is_release:
                live.pop(event.piece.number, None)
            else:
                live[event.piece.number] = event.piece
        return tuple(piece for piece in live.values() if piece.on_host is on_host)


EMPTY_PEAK = Peak(event=0, allocated_bytes=0, live=())
