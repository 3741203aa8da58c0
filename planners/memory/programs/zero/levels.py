"""A micro-batch's events as arrays, with what is gathered at each.

Of a deep model's like layers those in the middle see neither end: the engine looks no further than a billion elements.
They are gone through in a model of fewer layers, and stand there as often as the whole model has them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from plimsoll.planners.memory.programs.zero.gathering import REUSE_DISTANCE
from plimsoll.planners.memory.programs.zero.script import HEAD, Act, Limits, script
from plimsoll.planners.memory.programs.zero.tensors import MOST_KEPT_PARTS, ModelTensors, Tensor

Numbers: TypeAlias = npt.NDArray[np.int64]
# Layers beyond what is within reach of an end: those that are gathered meanwhile, and those that are compared.
BEYOND_REACH = 6
COMPARED = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """One entry for each event of so many `parts`; `turn` is the place of the first one of the backward pass.

    `layers` are the parts' numbers and `moments` those of a layer's backward pass. `made` are the elements of a
    gradient that is made, below 0 as it is reduced, and `reduced` all that are, in order. `usual` and `first` are
    those of the script.
    """

    parts: int
    turn: int
    layers: Numbers
    moments: Numbers
    made: Numbers
    reduced: tuple[Tensor, ...]
    usual: Numbers
    first: Numbers


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def levels(model: ModelTensors, gathering: Limits | None, **told: bool) -> Levels:
    """Return a micro-batch's events and what is gathered at each."""
    first, end = _like_layers(model)
    if first < end:
        elements = sum(tensor.elements for tensor in model.layers[first])
        fewer = 2 * (BEYOND_REACH + (0 if gathering is None else -(-REUSE_DISTANCE // elements)))
        if fewer < end - first:
            short = replace(model, layers=(*model.layers[: first + fewer], *model.layers[end:]))
            found = _repeated(_whole(short, gathering, **told), first + fewer // 2, more=end - first - fewer)
            if found is not None:
                return found
    return _whole(model, gathering, **told)


def _like_layers(model: ModelTensors) -> tuple[int, int]:
    """Return the first and the end of the longest run of layers whose tensors are alike."""
    longest = (0, 0)
    place = 0
    for _, run in itertools.groupby(model.layers, key=_signature):
        end = place + len(list(run))
        longest = max(longest, (place, end), key=lambda of: of[1] - of[0])
        place = end
    return longest


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def _signature(tensors: tuple[Tensor, ...]) -> tuple[object, ...]:
    return tuple((one.elements, one.learns, one.module, one.part, one.at, one.is_pinned) for one in tensors)


def _whole(model: ModelTensors, gathering: Limits | None, **told: bool) -> Levels:
    done = script(model, gathering, **told)
    events = done.events
    signs = {Act.KEEP: 1, Act.REDUCE: -1}
    return Levels(
        parts=len(model.layers) - HEAD,
        turn=done.turn,
        layers=np.array([event.layer for event in events], dtype=np.int64),
        moments=np.array([event.at for event in events], dtype=np.int64),
        made=np.array([signs[event.act] * event.tensor.elements if event.tensor else 0 for event in events]),
        reduced=tuple(event.tensor for event in events if event.tensor and event.act is Act.REDUCE),
        usual=np.array(done.usual, dtype=np.int64).reshape(-1, 3).T,
        first=np.array(done.first, dtype=np.int64).reshape(-1, 3).T,
    )


def _repeated(short: Levels, pivot: int, *, more: int) -> Levels | None:
    """Return the events with one layer so many times more; None where those around it do not take the same."""
    forward, backward = (_places(short, pivot, is_forward=is_forward) for is_forward in (True, False))
    if not (_are_alike(short, forward) and _are_alike(short, backward)):
        return None
    (up_from, up_to), (down_from, down_to) = forward[COMPARED], backward[COMPARED]
    length = len(short.layers)
    rows = np.concatenate(
        [
            np.arange(up_to),
            np.tile(np.arange(up_from, up_to), more),
            np.arange(up_to, down_to),
            np.tile(np.arange(down_from, down_to), more),
            np.arange(down_to, length),
        ]
    )
    ups, downs = up_to - up_from, down_to - down_from
    # How many more layers have been gone through: forwards and, from the turn on, backwards.
    up, down = np.zeros((2, len(rows)), dtype=np.int64)
    inserted = up_to + more * ups
    up[up_to:inserted] = np.repeat(np.arange(1, more + 1), ups)
    up[inserted:] = more
    begins = inserted + down_to - up_to
    down[begins : begins + more * downs] = np.repeat(np.arange(1, more + 1), downs)
    down[begins + more * downs :] = more
    layers = short.layers[rows]
    above = (layers > pivot) | ((layers == pivot) & (up > 0))
    reduced_at = np.cumsum(short.made < 0) - 1
    return Levels(
        parts=short.parts + more,
        turn=short.turn + more * ups,
        layers=np.where(above, layers + up - down, layers),
        moments=short.moments[rows],
        made=short.made[rows],
        reduced=tuple(short.reduced[place] for place in reduced_at[rows][short.made[rows] < 0].tolist()),
        usual=_raised(short.usual, rows, up, down, forward, backward),
        first=_raised(short.first, rows, up, down, forward, backward),
    )


Places: TypeAlias = Sequence[tuple[int, int]]


def _places(short: Levels, pivot: int, *, is_forward: bool) -> Places:
    """Return where the events of the layers around one begin and end."""
    part = slice(0, short.turn) if is_forward else slice(short.turn, None)
    layers, offset = short.layers[part], 0 if is_forward else short.turn
    found = []
    for number in range(pivot - COMPARED, pivot + COMPARED + 1):
        places = np.flatnonzero(layers == number) + offset
        found.append((int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0))
    return found


def _are_alike(short: Levels, places: Places) -> bool:
    """Return whether layers take the same, counted from where each begins."""

    def of_layer(begin: int, end: int) -> list[object]:
        return [
            (gathered[:2, begin:end] - gathered[1, begin - 1]).tolist() + gathered[2, begin:end].tolist()
            for gathered in (short.usual, short.first)
        ]

    one, *others = (of_layer(*place) for place in places)
    return all(other == one for other in others)


def _raised(gathered: Numbers, rows: Numbers, up: Numbers, down: Numbers, forward: Places, backward: Places) -> Numbers:
    """Return what is gathered at each event, with what the layers leave that stand there more often."""

    def left(begin: int, end: int) -> int:
        return int(gathered[1, end - 1] - gathered[1, begin - 1])

    raised = gathered[:, rows]
    raised[:2] += up * left(*forward[COMPARED]) + down * left(*backward[COMPARED])
    return raised
