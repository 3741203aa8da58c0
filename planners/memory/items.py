"""What is held at an event that may be the worst, by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray

FORWARD = "forward"
EVALUATION = "evaluation"
COMPANION_FORWARD = "companion forward"
PHASES = (
    "forward and loss",
    "backward",
    "root gradient reduction",
    "optimizer step",
    "loading",
    EVALUATION,
    COMPANION_FORWARD,
    FORWARD,
)
ALLOCATED_ITEMS = ("parameters", "gradients", "optimizer", "activations", "logits", "communication")
NOTHING: FloatArray = np.zeros(1)
# As a layer's number: what comes once the lowest layer has been differentiated.
BELOW_ALL_LAYERS: FloatArray = np.full(1, -1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Whole bytes at events of one phase, in the order of `ALLOCATED_ITEMS`; the arrays broadcast.

    `event` is its name among those of its phase, "" where that has no other. Several layers' events stand along an
    axis before that of the stages. `layer` is the layer of the stage that is
    differentiated, 0 the lowest; `BELOW_ALL_LAYERS` where it is the embedding after them; None before them, and where
    the phase has no layers.
    """

    phase: int
    event: str = ""
    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    logits: FloatArray
    communication: FloatArray
    layer: FloatArray | None = None

    def sums(self, axes: int) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield the states and the rest of every event, whose sum is the total, for stages of so many axes.

        Whole numbers add up in any order: those of the fewest axes come first.
        """
        states = self.parameters + self.optimizer + self.communication + self.gradients
        work = self.activations if self.logits is NOTHING else self.activations + self.logits
        for step in range(max(_events(states, axes), _events(work, axes))):
            yield _of_event(states, axes, step), _of_event(work, axes, step)

    def stacked(self, shape: tuple[int, ...]) -> FloatArray:
        """Return [event, item, *shape], `shape` being that of the stages."""
        items = [getattr(self, name) for name in ALLOCATED_ITEMS]
        events = max(_events(values, len(shape)) for values in items)
        stacked = np.empty((events, len(items), *shape))
        for place, values in enumerate(items):
            stacked[:, place] = values
        return stacked


def _events(values: FloatArray, axes: int) -> int:
    return values.shape[0] if values.ndim > axes else 1


def _of_event(values: FloatArray, axes: int, step: int) -> FloatArray:
    return values[step] if values.ndim > axes else values
