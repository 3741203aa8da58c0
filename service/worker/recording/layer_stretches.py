"""The stretches of a ledger: of each phase what is before the layers, each layer, and what is behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from plimsoll.service.worker.recording.ledger import ITEM_OF_KIND, LayerMark, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStretch:
    """Events [`first_event`, `end_event`) of a phase.

    `layer` is at work; where that is None, `beside` is the layer that begins after it or, if it `is_behind` the
    layers, has ended before it. Phases that go through no layers have neither.
    """

    step: int
    phase: str
    layer: int | None
    beside: int | None
    is_behind: bool
    first_event: int
    end_event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Height:
    """The most bytes that a stretch comes to, and what of them is for what; `event` is when."""

    stretch: LayerStretch
    event: int
    allocated_bytes: int
    items: Mapping[str, int]


def layer_stretches(ledger: Ledger) -> Iterator[LayerStretch]:
    """Yield the stretches in order; what is between two layers belongs to the one that ended."""
    marks: dict[int, list[LayerMark]] = {}
    for mark in ledger.layer_marks:
        marks.setdefault(mark.phase, []).append(mark)
    for place, (phase, first_event, end_event) in enumerate(ledger.phase_ranges()):
        parts = [LayerMark(first_event=first_event, phase=place, layer=None), *marks.get(place, ())]
        ends = [part.first_event for part in parts[1:]] + [end_event]
        numbers = [part.layer for part in parts if part.layer is not None]
        is_behind = False
        for part, end in zip(parts, ends, strict=True):
            beside = (numbers[-1] if is_behind else numbers[0]) if numbers and part.layer is None else None
            yield LayerStretch(
                step=phase.step,
                phase=phase.phase,
                layer=part.layer,
                beside=beside,
                is_behind=is_behind and part.layer is None,
                first_event=part.first_event,
                end_event=end,
            )
            is_behind = is_behind or part.layer is not None


def heights(ledger: Ledger, stretches: Iterable[LayerStretch]) -> Iterator[Height]:
    """Yield the highest moment of each stretch, which what it finds counts with.

    The stretches come in the order of the ledger. Only the device's memory counts.
    """
    held = dict.fromkeys(ITEM_OF_KIND.values(), 0)
    total = done = 0

    def go_on(end: int) -> Iterator[int]:
        nonlocal total, done
        for index in range(done, end):
            event, piece = ledger.events[index], ledger.events[index].piece
            if not piece.on_host:
                change = -piece.allocated_bytes if event.is_release else piece.allocated_bytes
                held[ITEM_OF_KIND[piece.kind]] += change
                total += change
            yield index
        done = max(done, end)

    for stretch in stretches:
        for _ in go_on(stretch.first_event):
            """What lies between the stretches that are asked for."""
        highest = Height(stretch=stretch, event=stretch.first_event - 1, allocated_bytes=total, items=dict(held))
        for index in go_on(stretch.end_event):
            if total > highest.allocated_bytes:
                highest = Height(stretch=stretch, event=index, allocated_bytes=total, items=dict(held))
        yield highest


def numbered_anew(ledger: Ledger, first_layer: int, last_layer: int) -> Ledger:
    """Return a ledger grown from a shallower one with its layers counted from `first_layer` on, in either direction.

    Of a pass only the places of its marks count, and whether it ends with what is behind the layers: what follows the
    last layer may begin as another layer would, and be repeated in its place. Where a pass does not go through just so
    many layers, the ledger has none marked.
    """
    numbers = list(range(first_layer, last_layer + 1))
    passes: dict[int, list[LayerMark]] = {}
    for mark in ledger.layer_marks:
        passes.setdefault(mark.phase, []).append(mark)
    anew: list[LayerMark] = []
    for marks in passes.values():
        ends = [None] if any(mark.layer is None for mark in marks) else []
        found = [mark.layer for mark in marks if mark.layer is not None]
        is_downwards = found[0] > found[-1] if found else False
        order = [*(reversed(numbers) if is_downwards else numbers), *ends]
        if len(marks) != len(order):
            return replace(ledger, layer_marks=[])
        anew += [replace(mark, layer=layer) for mark, layer in zip(marks, order, strict=True)]
    return replace(ledger, layer_marks=anew)
