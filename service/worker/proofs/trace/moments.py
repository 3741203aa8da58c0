"""A plan's moments beside those of its trace: of each pass every layer, the loss, the reduction and the update.

A layer's stretch has several moments within, of which the largest counts on both sides; of several micro-batches
likewise. What comes behind the lowest layer's backward pass, the embedding's own and the reduction of what is left, is
one stretch, for a trace knows no border between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plimsoll.planners.memory.steps import step as planned
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.recording.layer_stretches import Height, LayerStretch, heights, layer_stretches
from plimsoll.service.worker.recording.ledger import ITEMS, Ledger
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, OPTIMIZER

# The plan's names of what a trace calls its phases.
PHASES = {FORWARD: planned.FORWARD, BACKWARD: planned.BACKWARD, OPTIMIZER: planned.UPDATE}
CLOSE_FRACTION = 0.01


class Place(NamedTuple):
    """Where in a step a moment is: a layer of a phase or, of none, what is before the layers or behind them."""

    phase: str
    layer: int | None = None
    is_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is held at a moment, in all and by the plan's items."""

    allocated_bytes: int
    items: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What plan and trace hold at one place; `distance` is a part of the traced peak, above 0 where more is planned."""

    place: Place
    planned: Held
    traced: Held
    distance: float

    def as_json(self) -> dict[str, Any]:
        """Return the pair as results have it."""
        return {
            "phase": self.place.phase,
            "layer": self.place.layer,
            "planned_bytes": self.planned.allocated_bytes,
            "traced_bytes": self.traced.allocated_bytes,
            "distance": self.distance,
            "planned_items": dict(self.planned.items),
            "traced_items": dict(self.traced.items),
        }


def compared_moments(
    ledger: Ledger, chunks: Sequence[PipelineStage], moments: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the moments that plan and trace both have, in the order of a step, and how far apart they are.

    `moments` are those of the plan's stage. There are none where the ledger has no layers marked.
    """
    pairs = list(_pairs(ledger, chunks, planned_moments(moments)))
    worst = max(pairs, key=lambda pair: abs(pair.distance), default=None)
    return {
        "moments": [pair.as_json() for pair in pairs],
        "moments_within_one_percent": sum(abs(pair.distance) <= CLOSE_FRACTION for pair in pairs),
        "worst_moment": None
        if worst is None
        else {"phase": worst.place.phase, "layer": worst.place.layer, "distance": worst.distance},
    }


def _pairs(ledger: Ledger, chunks: Sequence[PipelineStage], told: Mapping[Place, Held]) -> Iterator[Pair]:
    peak_bytes = ledger.peak().allocated_bytes
    for place, traced in traced_moments(ledger, chunks).items():
        if place in told:
            distance = (told[place].allocated_bytes - traced.allocated_bytes) / peak_bytes
            yield Pair(place=place, planned=told[place], traced=traced, distance=distance)


def traced_moments(ledger: Ledger, chunks: Sequence[PipelineStage]) -> dict[Place, Held]:
    """Return the highest moment of each stretch of the last step, in the order of a step."""
    if not ledger.layer_marks:
        return {}
    ends = (chunks[0].first_layer, chunks[-1].last_layer)
    found: dict[Place, Height] = {}
    for height in heights(ledger, stretches_of_last_step(ledger)):
        if height.stretch.beside is not None and not _is_outermost(height.stretch, ends):
            continue
        place = place_of(height.stretch)
        if place not in found or height.allocated_bytes > found[place].allocated_bytes:
            found[place] = height
    return {
        place: Held(allocated_bytes=found[place].allocated_bytes, items=_of_plan(found[place].items))
        for place in sorted(found, key=_order)
    }


def stretches_of_last_step(ledger: Ledger) -> list[LayerStretch]:
    """Return the stretches of the passes and the update of the last step, in order."""
    last = ledger.marks[-1].step
    return [stretch for stretch in layer_stretches(ledger) if stretch.step == last and stretch.phase in PHASES]


def place_of(stretch: LayerStretch) -> Place:
    """Return where in a step a stretch is, in the plan's words."""
    if stretch.phase == BACKWARD and stretch.is_behind:
        return Place(planned.REDUCTION)
    return Place(PHASES[stretch.phase], stretch.layer, stretch.is_behind)


def planned_moments(moments: Sequence[Mapping[str, Any]]) -> dict[Place, Held]:
    """Return a stage's moments as the plan has them, by their place; what is behind the layers as one."""
    found: dict[Place, Held] = {}
    for index, moment in enumerate(moments):
        place = _planned_place(moment, moments[index + 1 :])
        held = Held(allocated_bytes=int(moment["allocated_bytes"]), items=_of_plan(moment["items"]))
        if place not in found or held.allocated_bytes > found[place].allocated_bytes:
            found[place] = held
    return found


def _planned_place(moment: Mapping[str, Any], following: Iterable[Mapping[str, Any]]) -> Place:
    phase, layer = moment["phase"], moment["layer"]
    if phase == planned.COMPANION_FORWARD:  # which a trace has behind the policy's layers
        return Place(planned.FORWARD, is_behind=True)
    goes_through_layers = phase in (planned.FORWARD, planned.BACKWARD)
    is_behind = goes_through_layers and not any(
        later["layer"] is not None for later in following if later["phase"] == phase
    )
    if phase == planned.REDUCTION or (phase == planned.BACKWARD and layer is None and is_behind):
        return Place(planned.REDUCTION)
    return Place(phase, layer, is_behind and layer is None)


def _is_outermost(stretch: LayerStretch, ends: tuple[int, int]) -> bool:
    """Return whether a stretch of no layer is at the stage's lowest or highest, and not between two of its chunks."""
    lowest, highest = ends
    is_above = stretch.is_behind if stretch.phase == FORWARD else not stretch.is_behind
    return stretch.beside == (highest if is_above else lowest)


def _order(place: Place) -> tuple[int, int, int]:
    phases = (planned.FORWARD, planned.BACKWARD, planned.REDUCTION, planned.UPDATE)
    direction = -1 if place.phase == planned.BACKWARD else 1
    rank = 1 if place.layer is not None else 2 * place.is_behind
    return (phases.index(place.phase), rank, direction * (place.layer or 0))


def _of_plan(items: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(items.get(name, 0)) for name in ITEMS}
