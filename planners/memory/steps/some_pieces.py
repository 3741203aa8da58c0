"""A program's step with some of its pieces alone, for the most that those ever hold by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment
from plimsoll.planners.memory.steps.step import Held, Step

# Of a layer's moments only the largest is looked for, and their pieces bear the moments' names.
MOMENTS = "layer at work"


class StepOfSome(Step):
    """Adds up the pieces whose names `counts` says yes to, and takes no notice of all others."""

    def __init__(self, counts: Callable[[str], bool]) -> None:
        super().__init__()
        self._counts = counts

    def take(self, item: str, name: str, amount: FloatArray) -> Held:
        """Allocate a piece, an empty one if it does not count."""
        return super().take(item, name, amount if self._counts(name) else NO_BYTES)

    def grow(self, held: Held, amount: FloatArray) -> None:
        """Let a piece that counts become so much larger."""
        if self._counts(held.name):
            super().grow(held, amount)

    def shrink(self, held: Held, amount: FloatArray) -> None:
        """Let a piece that counts become so much smaller."""
        if self._counts(held.name):
            super().shrink(held, amount)

    def resize(self, held: Held, amount: FloatArray) -> None:
        """Let a piece that counts become as large as this."""
        if self._counts(held.name):
            super().resize(held, amount)

    def moments(self, moments: Sequence[Moment], *, unsaved: FloatArray = NO_BYTES) -> None:
        """Hold what a layer holds at each of some moments, if moments count."""
        if self._counts(MOMENTS):
            super().moments(moments, unsaved=unsaved)
