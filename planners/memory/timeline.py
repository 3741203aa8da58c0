"""The events of one stage's step as a curve of memory over time, thinned to what a client draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plimsoll.planners.memory.steps.record import Event
from plimsoll.planners.memory.steps.step import (
    BACKWARD,
    COMPANION_FORWARD,
    EVALUATION,
    FORWARD,
    ITEMS,
    LOADING,
    REDUCTION,
    UPDATE,
)
from plimsoll.planners.plans import LiveItems, MemoryMoment

# A companion's forward pass runs after the policy's, and an evaluation between two steps.
IN_ORDER = (LOADING, FORWARD, COMPANION_FORWARD, BACKWARD, REDUCTION, UPDATE, EVALUATION)


OUTSIDE_STEPS = frozenset({LOADING, COMPANION_FORWARD, EVALUATION})


def moments_of(events: Sequence[Event], layers: Sequence[int]) -> tuple[MemoryMoment, ...]:
    """Return the phases in their order and in each, as they come, every layer and what is of none, at their worst.

    `layers` are the stage's own, by their numbers in the model, lowest first.
    """
    largest: dict[tuple[int, int, int | None], Event] = {}
    run, last = 0, None
    for event in _with_update(events):
        if event.layer != last:
            run, last = run + 1, event.layer
        place = (IN_ORDER.index(event.phase), run, event.layer)
        known = largest.get(place)
        if known is None or event.total > known.total:
            largest[place] = event
    ordered = sorted(largest.items(), key=lambda entry: entry[0][:2])
    return tuple(_moment(event, layers) for _, event in ordered)


def _with_update(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events with one of the update: an update that makes nothing finds what the passes left."""
    of_step = [event for event in events if event.phase not in OUTSIDE_STEPS]
    if not of_step or of_step[-1].phase == UPDATE:
        return events
    return [*events, replace(of_step[-1], phase=UPDATE, layer=None)]


def _moment(event: Event, layers: Sequence[int]) -> MemoryMoment:
    return MemoryMoment(
        phase=event.phase,
        layer=None if event.layer is None else layers[event.layer],
        allocated_bytes=event.total,
        items=LiveItems(**dict(zip(ITEMS, event.held, strict=True))),
    )
