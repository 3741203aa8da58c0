"""The step that a program writes down: what it takes, lets go of, and holds at most.

A program is a function that allocates and releases as the stack's own code does, and goes through the layers of a
stage. It runs once for all layouts: a size is an array over them, and what only some of them do stands under `where`.
The running sum of its events is what is held, and the peak the largest of them. Every layout's peak needs no list of
events; one layout's account is the list (`record.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.memory.steps.layers import Layer, Layers, Part
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, Moment, plus, without
from plimsoll.planners.memory.steps.pool import Pool

ITEMS = ("parameters", "gradients", "optimizer", "activations", "logits", "communication")
# Sizes that vary with micro-batch and recomputation are added up apart from those that vary with the ZeRO stage, so
# that most sums are over a few of a grid's axes.
WORK = frozenset({"activations", "logits"})
FORWARD, BACKWARD, REDUCTION, UPDATE = "forward and loss", "backward", "root gradient reduction", "optimizer step"
LOADING, EVALUATION, COMPANION_FORWARD = "loading", "evaluation", "companion forward"

NOWHERE: FloatArray = np.zeros(())


@dataclass(slots=True, eq=False)
class Held:
    """A piece of memory from when it is taken until it is let go of; `amount` is what is left of it.

    `within` are the layouts that it was taken in, 1 in them and 0 elsewhere; None for all.
    """

    item: str
    name: str
    amount: FloatArray
    within: FloatArray | None = None


class Step:
    """Adds up what is held of many layouts at once, and remembers the most.

    What is held lies in one pool, or pieces of the names in `apart` in pools of their own. In each the sums of `WORK`
    and of all else are apart.
    """

    def __init__(self, apart: Sequence[frozenset[str]] = ()) -> None:
        self.phase = FORWARD
        self._main = Pool()
        self._pools = [self._main, *(Pool() for _ in apart)]
        self._apart = {name: pool for names, pool in zip(apart, self._pools[1:], strict=True) for name in names}
        # 1 in the layouts in which things happen and 0 elsewhere; None for all.
        self._within: FloatArray | None = None
        self._carried: list[Held] = []
        # Arrays by the identities of what they were made of; those are kept, so that no other array gets one of them.
        self._known: dict[tuple[int, int], tuple[FloatArray, object, object]] = {}

    @property
    def peaks(self) -> tuple[FloatArray, ...]:
        """Return the most bytes that were ever held in each pool, those of the names `apart` behind the main one."""
        return tuple(pool.peak for pool in self._pools)

    @property
    def peak(self) -> FloatArray:
        """Return the most bytes that were ever held in the main pool."""
        return self._main.peak

    def take(self, item: str, name: str, amount: FloatArray) -> Held:
        """Allocate a piece."""
        here = amount if self._within is None else self._here(amount)
        held = Held(item, name, here, self._within)
        if here is not NO_BYTES:
            self._change(held, here)
        return held

    def carry(self, item: str, name: str) -> Held:
        """Return a piece, nothing as yet, that is handed from layer to layer, or grows with every one."""
        held = Held(item, name, NO_BYTES)
        self._carried.append(held)
        return held

    def drop(self, *pieces: Held | None) -> None:
        """Let go of pieces."""
        for held in pieces:
            if held is not None and held.amount is not NO_BYTES and self._within is not NOWHERE:
                if self._within is held.within or self._within is None:
                    let_go, held.amount = held.amount, NO_BYTES
                else:
                    let_go = self._here(held.amount)
                    held.amount = held.amount - let_go
                self._let_go(held, let_go)

    def grow(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become so much larger."""
        more = self._here(amount)
        if more is not NO_BYTES:
            held.amount = plus(held.amount, more)
            self._change(held, more)

    def shrink(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become so much smaller."""
        less = self._here(amount)
        if less is not NO_BYTES:
            held.amount = held.amount - less
            self._let_go(held, less)

    def leave(self, *pieces: Held) -> None:
        """Leave pieces behind when the step is over; a recorded step asks for all others (`record.py`)."""

    def hand_over(self, source: Held, target: Held) -> None:
        """Let one piece be called by another's name from now on, which was let go of."""
        handed = self._here(source.amount)
        if handed is NO_BYTES:
            return
        is_all = self._within is None or self._within is source.within
        target.amount = plus(target.amount, handed)
        source.amount = NO_BYTES if is_all else source.amount - handed

    def resize(self, held: Held, amount: FloatArray) -> None:
        """Let a piece become as large as this, in one event."""
        if amount is held.amount or self._within is NOWHERE:
            return
        if self._within is held.within:
            before, held.amount = held.amount, self._here(amount)
            more = held.amount if before is NO_BYTES else held.amount - before
        elif held.amount is NO_BYTES:
            more = held.amount = self._here(amount)
        else:
            more = self._here(amount - held.amount)
            held.amount = held.amount + more
        self._change(held, more, falls=True)

    def where(self, mask: Mask) -> _Where:
        """Let what happens meanwhile happen in these layouts alone."""
        outer = self._within
        if mask is False or outer is NOWHERE:
            return _Where(self, NOWHERE)
        if mask is True:
            return _Where(self, outer)
        return _Where(self, mask if outer is None else self._both(outer, mask))

    @contextmanager
    def quiet(self, is_quiet: bool = True) -> Iterator[None]:
        """Do not look for the most meanwhile: the program knows that more is held before or after."""
        looked = [pool.begin_quiet() for pool in self._pools] if is_quiet else []
        yield
        for pool, looks_again in zip(self._pools, looked, strict=False):
            pool.end_quiet(looks_again)

    def each(self, layers: Layers, *, downwards: bool = False) -> Iterator[Layer]:
        """Yield layers, lowest first or last; what happens meanwhile happens for each that one stands for."""
        for run, part, group in layers.every(downwards=downwards):
            with self.where(run.present(part)):
                if part is Part.MIDDLE:
                    yield from self._each_between(group, run.count)
                else:
                    yield from group

    def moments(self, moments: Sequence[Moment], *, unsaved: FloatArray = NO_BYTES) -> None:
        """Hold one after the other what a layer holds at each of some moments, `unsaved` less of its activations."""
        self.drop(self.take("activations", "layer at work", self._most_of(moments, unsaved)))

    def _most_of(self, moments: Sequence[Moment], unsaved: FloatArray) -> FloatArray:
        """Return the most that is held at any of the moments; layers of a kind ask for it again and again."""
        key = (id(moments), id(unsaved))
        if key not in self._known:
            most = without(moments[0].activations, unsaved) + moments[0].gradients
            for moment in moments[1:]:
                most = np.maximum(most, without(moment.activations, unsaved) + moment.gradients)
            self._known[key] = (most, moments, unsaved)
        return self._known[key][0]

    def _both(self, outer: FloatArray, mask: FloatArray) -> FloatArray:
        """Return the layouts of two masks, the same array whenever it is asked for."""
        key = (id(outer), id(mask))
        if key not in self._known:
            self._known[key] = (outer * mask, outer, mask)
        return self._known[key][0]

    def _each_between(self, group: Sequence[Layer], count: IntArray) -> Iterator[Layer]:
        """Yield the layers of one group, and let what they did be done for all groups between the ends.

        Every group does the same, so that after each the sums are larger by as much.
        """
        before = [pool.begin_group() for pool in self._pools]
        carried = [held.amount for held in self._carried]
        yield from group
        more = np.maximum(count - Part.MIDDLE, 0)
        for pool, then in zip(self._pools, before, strict=True):
            pool.end_group(then, more)
        for held, amount in zip(self._carried, carried, strict=True):
            if held.amount is not amount:
                held.amount = held.amount + more * (held.amount - amount)

    def _pool_of(self, name: str) -> Pool:
        return self._apart.get(name, self._main) if self._apart else self._main

    def _here(self, amount: FloatArray) -> FloatArray:
        if self._within is None or amount is NO_BYTES:
            return amount
        return NO_BYTES if self._within is NOWHERE else amount * self._within

    def _change(self, held: Held, amount: FloatArray, *, falls: bool = False) -> None:
        """Add a change to the sum that it belongs to; one that `falls` may be below nothing."""
        if amount is not NO_BYTES:
            self._pool_of(held.name).change(held.item in WORK, amount, falls=falls)

    def _let_go(self, held: Held, amount: FloatArray) -> None:
        """Take an amount from the sum that it belongs to."""
        if amount is not NO_BYTES:
            self._pool_of(held.name).let_go(held.item in WORK, amount)


class _Where:
    """What a step does while it happens in some layouts alone."""

    __slots__ = ("_outer", "_step", "_within")

    def __init__(self, step: Step, within: FloatArray | None) -> None:
        self._step, self._within, self._outer = step, within, step._within

    def __enter__(self) -> None:
        self._step._within = self._within

    def __exit__(self, *_: object) -> None:
        self._step._within = self._outer
