"""The events of one layout's step in the order in which they come, for a curve of memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.memory.items import ALLOCATED_ITEMS, COMPANION_FORWARD, EVALUATION, FORWARD, PHASES, Items
from plimsoll.planners.plans import LiveItems, MemoryMoment

# A companion's forward pass runs after the policy's, and an evaluation between two steps.
IN_ORDER = (
    "loading",
    FORWARD,
    COMPANION_FORWARD,
    "forward and loss",
    "backward",
    "root gradient reduction",
    "optimizer step",
    EVALUATION,
)
# Backward events of no one layer are the head's, which comes before every layer.
ABOVE_ALL_LAYERS = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedEvents:
    """Every event: `items` is [event, item, stage, layout], `phase` [event], `layer` [event, stage, layout].

    A layer counts from its stage's lowest; it is `ABOVE_ALL_LAYERS` before any is differentiated, and
    `BELOW_ALL_LAYERS` after all are.
    Of one layout the last axis is gone.
    """

    items: FloatArray
    phase: IntArray
    layer: FloatArray

    def of_layout(self, index: int) -> StackedEvents:
        """Return the events of one of the layouts."""
        return StackedEvents(items=self.items[..., index], phase=self.phase, layer=self.layer[..., index])


def stacked_events(phases: Sequence[Items], shape: tuple[int, ...]) -> StackedEvents:
    """Return the events of a list of layouts' stages; `shape` is theirs, [stage, layout]."""
    stacked = [items.stacked(shape) for items in phases]
    layers = [
        np.broadcast_to(ABOVE_ALL_LAYERS if items.layer is None else items.layer, (len(some), *shape))
        for items, some in zip(phases, stacked, strict=True)
    ]
    return StackedEvents(
        items=np.concatenate(stacked),
        phase=np.repeat([items.phase for items in phases], [len(some) for some in stacked]),
        layer=np.concatenate(layers),
    )


def events_of(events: StackedEvents, stage: int, layers: Sequence[int]) -> tuple[MemoryMoment, ...]:
    """Return one stage's of one layout's events in order; of several of one phase and layer the largest.

    `layers` are the stage's own, by their numbers in the model, lowest first; one without layers names none.
    """
    largest: dict[tuple[int, float], MemoryMoment] = {}
    for index, phase in enumerate(events.phase):
        name, layer = PHASES[int(phase)], float(events.layer[index, stage])
        step = _event(name, layer, events.items[index, :, stage], layers)
        place = (IN_ORDER.index(name), -layer)
        known = largest.get(place)
        if known is None or step.allocated_bytes > known.allocated_bytes:
            largest[place] = step
    return tuple(largest[place] for place in sorted(largest))


def _event(phase: str, layer: float, items: FloatArray, layers: Sequence[int]) -> MemoryMoment:
    values = dict(zip(ALLOCATED_ITEMS, map(int, items), strict=True))
    return MemoryMoment(
        phase=phase,
        layer=layers[int(layer)] if layers and 0 <= layer < ABOVE_ALL_LAYERS else None,
        allocated_bytes=sum(values.values()),
        items=LiveItems(**values),
    )
