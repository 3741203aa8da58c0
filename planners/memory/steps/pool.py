"""A pool of memory: what is held of it, and the most that ever was."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, plus

NOTHING_ADDED: tuple[FloatArray | None, FloatArray] = (None, NO_BYTES)


class BeforeGroup(NamedTuple):
    """A pool as a group of layers begins that stands for several."""

    sums: tuple[FloatArray, FloatArray]
    most: FloatArray


class Pool:
    """Adds up what is held of many layouts at once, and remembers the most.

    There are two sums, each over the axes of a grid that it varies with. The most of one is looked for while the other
    stays as it is, and only as something is let go of, since all that is taken makes it more.
    """

    def __init__(self) -> None:
        self._sums: list[FloatArray] = [NO_BYTES, NO_BYTES]
        # The most of either sum before it last fell, since the other one changed; and the most of both.
        self._highest: list[FloatArray | None] = [None, None]
        self._most = NO_BYTES
        self._last_changed = 0
        # Whether more may be held than has been looked at.
        self._has_grown = False
        # What was added last to either sum, and the sum before it.
        self._added = [NOTHING_ADDED, NOTHING_ADDED]
        self._is_quiet = False

    @property
    def peak(self) -> FloatArray:
        """Return the most bytes that were ever held."""
        self._fold()
        return self._most

    def change(self, place: int, amount: FloatArray, *, falls: bool = False) -> None:
        """Add a change to one of the sums; one that `falls` may be below nothing."""
        if not self._is_quiet:
            self._look(place, falls=falls)
            self._has_grown = True
        before = self._sums[place]
        self._sums[place] = plus(before, amount)
        self._added[place] = (amount, before)

    def let_go(self, place: int, amount: FloatArray) -> None:
        """Take an amount from one of the sums."""
        if not self._is_quiet:
            self._look(place, falls=True)
        last, before = self._added[place]
        self._sums[place] = before if last is amount else self._sums[place] - amount
        self._added[place] = NOTHING_ADDED

    def begin_quiet(self) -> bool:
        """Look for the most no longer; return whether it was looked for."""
        self._fold()
        was_quiet, self._is_quiet = self._is_quiet, True
        return not was_quiet

    def end_quiet(self, looks_again: bool) -> None:
        """Look for the most again, if it was looked for before."""
        self._is_quiet = not looks_again
        self._has_grown, self._highest = True, [None, None]

    def begin_group(self) -> BeforeGroup:
        """Look for the most of a group of layers by itself."""
        self._fold()
        before = BeforeGroup((self._sums[0], self._sums[1]), self._most)
        self._most = NO_BYTES
        return before

    def end_group(self, before: BeforeGroup, more: FloatArray | IntArray) -> None:
        """Let so many groups `more` do what one did since; the most was held in the first or in the last of them."""
        self._fold()
        added = NO_BYTES
        for place, (now, then) in enumerate(zip(self._sums, before.sums, strict=True)):
            if now is not then:
                of_all = more * (now - then)
                self._sums[place], self._added[place] = now + of_all, NOTHING_ADDED
                added = plus(added, of_all)
        within, self._most = self._most, before.most
        if not self._is_quiet:
            self._raise_most(within if added is NO_BYTES else within + np.maximum(added, 0.0))

    def _look(self, place: int, *, falls: bool) -> None:
        """Look at what is held before a sum changes, if it is more than before and more than after."""
        if place != self._last_changed:
            self._has_grown = self._has_grown and falls  # else it goes on growing
            self._fold()
            self._last_changed = place
        elif falls and self._has_grown:
            self._raise_highest()

    def _raise_highest(self) -> None:
        place = self._last_changed
        highest, now = self._highest[place], self._sums[place]
        self._highest[place] = now if highest is None else np.maximum(highest, now)
        self._has_grown = False

    def _fold(self) -> None:
        """Remember the most that was held since the sum that last stood still did so."""
        if self._is_quiet:
            return
        if self._has_grown:
            self._raise_highest()
        place = self._last_changed
        highest = self._highest[place]
        if highest is not None:
            self._highest[place] = None
            self._raise_most(highest + self._sums[not place])

    def _raise_most(self, total: FloatArray) -> None:
        if self._most is NO_BYTES:
            self._most = total
        elif self._most.shape == total.shape and total.shape:
            np.maximum(self._most, total, out=self._most)
        else:
            self._most = np.maximum(self._most, total)
