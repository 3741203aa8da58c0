"""A micro-batch as DeepSpeed's engine goes through it, tensor by tensor: what it holds beside states and activations.

All decisions of the engine hang on numbers of elements and on the number of ranks, and on nothing else of a layout. So
they are followed once for each number of ranks, and what a program needs of them is how much more is held at most, and
in the end, than as each layer began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plimsoll.planners.memory.programs.zero.reduction import Reduction
from plimsoll.planners.memory.programs.zero.script import Act, Event, Script
from plimsoll.planners.memory.programs.zero.tensors import At


@dataclass(slots=True)
class Passage:
    """Elements that are held at most, at each moment of a layer, and in the end, beyond those at its beginning."""

    most: list[int] = field(default_factory=lambda: [0] * len(At))
    left: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A micro-batch's passages: forwards, backwards, and what is held at most as the last bucket is flushed.

    `before_end` is what is held just before that.
    """

    forward: dict[int, Passage]
    backward: dict[int, Passage]
    before_end: int
    end: int


def walk(script: Script, reduction: Reduction, *, spared: int, pulled_by: int | None) -> Walk:
    """Go through a micro-batch's events with one way to reduce gradients.

    So much is `spared` in the first micro-batch, which finds no moments. Parts that wait on the host are pulled by so
    many ranks, each its own.
    """
    levels = [
        (
            max(usual[0], first[0] - spared) + (-(-max(usual[2], first[2]) // pulled_by) if pulled_by else 0),
            max(usual[1], first[1] - spared),
        )
        for usual, first in zip(script.usual, script.first, strict=True)
    ]
    events = list(zip(script.events, levels, strict=True))
    forward = _follow(events[: script.turn], reduction, 0)
    began = levels[script.turn - 1][1] if script.turn else 0
    backward = _follow(events[script.turn :], reduction, began)
    before_end = reduction.held + (levels[-1][1] if levels else 0)
    return Walk(forward, backward, before_end, before_end - reduction.held + reduction.end())


def _follow(events: Sequence[tuple[Event, tuple[int, int]]], reduction: Reduction, gathered: int) -> dict[int, Passage]:
    """Return the passage of every part; so much is `gathered` as they begin."""
    passages: dict[int, Passage] = {}
    kept = began = 0
    for event, (most_gathered, left) in events:
        if event.layer not in passages:
            passages[event.layer] = Passage()
            began = gathered + reduction.held
        most = most_gathered + reduction.held + kept
        if event.tensor is not None:
            if event.act is Act.KEEP:
                kept += event.tensor.elements
                most += event.tensor.elements
            else:
                kept -= event.tensor.elements
                most = most_gathered + kept + reduction.hook(event.tensor)
        gathered = left
        passage = passages[event.layer]
        passage.most[event.at] = max(passage.most[event.at], most - began)
        passage.left = reduction.held + gathered - began
    return passages
