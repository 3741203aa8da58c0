"""The largest allocations of a trace's last step: when each comes and goes, and what the plan has of the like then."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.service.worker.proofs.trace.moments import Held, Place, place_of, planned_moments, stretches_of_last_step
from plimsoll.service.worker.recording.layer_stretches import LayerStretch
from plimsoll.service.worker.recording.ledger import ITEM_OF_KIND, Ledger, Piece
from plimsoll.service.worker.recording.repeated_layers import LAYER_NUMBER

MOST_ALLOCATIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A piece within the last step; `born` and `gone` are events, None before the step and after it."""

    piece: Piece
    born: int | None
    gone: int | None


def largest_allocations(
    ledger: Ledger, moments: Sequence[Mapping[str, Any]], *, most: int = MOST_ALLOCATIONS
) -> list[dict[str, Any]]:
    """Return the largest pieces of the last step, of those alike but for their layer the one that lives longest.

    `planned_item_bytes` is what the plan has of the piece's item at the moment at which it is allocated, of one that
    stands before the step at the step's begin; None where the plan has no such moment.
    """
    stretches = stretches_of_last_step(ledger)
    if not stretches:
        return []
    alike: dict[tuple[str, str, int], list[Life]] = {}
    for life in _lives(ledger, stretches[0].first_event):
        piece = life.piece
        name = LAYER_NUMBER.sub("*", piece.origin)
        alike.setdefault((piece.kind.value, name, piece.allocated_bytes), []).append(life)
    ranked = sorted(alike.items(), key=lambda entry: -entry[0][2])[:most]
    told = planned_moments(moments)
    end = len(ledger.events)
    return [
        {
            "kind": kind,
            "name": name,
            "item": ITEM_OF_KIND[lives[0].piece.kind],
            "bytes": size,
            "count": len(lives),
            **_lifetime(max(lives, key=lambda life: _length(life, end)), stretches, told),
        }
        for (kind, name, size), lives in ranked
    ]


def _lives(ledger: Ledger, first_event: int) -> Iterator[Life]:
    """Yield the device's pieces that live after an event, each with when it comes and goes."""
    born: dict[int, tuple[Piece, int | None]] = {}
    for index, event in enumerate(ledger.events):
        piece = event.piece
        if piece.on_host:
            continue
        if not event.is_release:
            born[piece.number] = (piece, index if index >= first_event else None)
            continue
        _, begun = born.pop(piece.number, (piece, None))
        if index >= first_event:
            yield Life(piece=piece, born=begun, gone=index)
    yield from (Life(piece=piece, born=begun, gone=None) for piece, begun in born.values())


def _length(life: Life, end: int) -> int:
    return (end if life.gone is None else life.gone) - (life.born or 0)


def _lifetime(life: Life, stretches: Sequence[LayerStretch], told: Mapping[Place, Held]) -> dict[str, Any]:
    begun = stretches[0] if life.born is None else _stretch_at(life.born, stretches)
    planned = told.get(place_of(begun))
    return {
        "allocated_at": None if life.born is None else _told(begun),
        "released_at": None if life.gone is None else _told(_stretch_at(life.gone, stretches)),
        "planned_item_bytes": None if planned is None else planned.items.get(ITEM_OF_KIND[life.piece.kind]),
    }


def _stretch_at(event: int, stretches: Sequence[LayerStretch]) -> LayerStretch:
    return stretches[bisect.bisect_right(stretches, event, key=lambda stretch: stretch.first_event) - 1]


def _told(stretch: LayerStretch) -> dict[str, Any]:
    place = place_of(stretch)
    return {"phase": place.phase, "layer": place.layer}
