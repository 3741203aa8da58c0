"""What a program adds up of one layer: whole bytes of one rank, for every layout at once.

An array varies along the axes of the layouts, and along one of stages before them where it differs between those.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, any_of

NO_BYTES: FloatArray = np.zeros(())
# Which layouts something holds for: all of them, none, or those for which an array has 1 and not 0.
Mask: TypeAlias = FloatArray | bool


def mask_of(holds: BoolArray) -> Mask:
    """Return which layouts something holds for, without an array where it is all or none."""
    count = int(np.count_nonzero(holds))
    if count == holds.size:
        return True
    return holds.astype(np.float64) if count else False


def opposite(mask: Mask) -> Mask:
    """Return the layouts that something does not hold for."""
    return not mask if isinstance(mask, bool) else 1.0 - mask


def either(*masks: Mask) -> Mask:
    """Return the layouts that at least one of these holds for."""
    if any(mask is True for mask in masks):
        return True
    arrays = [mask for mask in masks if not isinstance(mask, bool)]
    return functools.reduce(np.maximum, arrays) if arrays else False


def some(amount: FloatArray) -> FloatArray:
    """Return an amount, `NO_BYTES` where it is nothing for every layout."""
    return amount if any_of(amount) else NO_BYTES


def only(mask: Mask, amount: FloatArray) -> FloatArray:
    """Return an amount where it is held, and nothing elsewhere."""
    if amount is NO_BYTES or isinstance(mask, bool):
        return amount if mask is not False else NO_BYTES
    return amount * mask


def plus(amount: FloatArray, more: FloatArray) -> FloatArray:
    """Return an amount and more of it; the same array where one of them is nothing."""
    if amount is NO_BYTES:
        return more
    return amount if more is NO_BYTES else amount + more


def without(amount: FloatArray, part: FloatArray) -> FloatArray:
    """Return an amount without a part of it, at least nothing."""
    if part is NO_BYTES:
        return amount
    left: FloatArray = np.maximum(amount - part, 0.0)
    return left


class Moment(NamedTuple):
    """What a layer holds at one moment of its own backward pass: activations, and gradients before their reduction."""

    name: str
    activations: FloatArray
    gradients: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Weights that are gathered and reduced together.

    `weights` are whole, in the compute precision, and `buffer` is what they are gathered into. `gradients` are whole
    too; they are reduced in a buffer of `reduced` bytes into an `output`, which is the rank's `shard` of them or is
    cast to it. `last_gradient` is that of the last of its weights, `last_summed` the same in the reduction's width, in
    which micro-batches add them up: `summed` is all, `last_matrix_gradient` what is cast to it last.
    """

    weights: FloatArray
    buffer: FloatArray
    gradients: FloatArray
    reduced: FloatArray
    summed: FloatArray
    last_matrix_gradient: FloatArray
    output: FloatArray
    shard: FloatArray
    last_gradient: FloatArray
    last_summed: FloatArray


NO_UNIT = Unit(
    weights=NO_BYTES,
    buffer=NO_BYTES,
    gradients=NO_BYTES,
    reduced=NO_BYTES,
    summed=NO_BYTES,
    last_matrix_gradient=NO_BYTES,
    output=NO_BYTES,
    shard=NO_BYTES,
    last_gradient=NO_BYTES,
    last_summed=NO_BYTES,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """What an engine that gathers and reduces tensor by tensor holds beside a layer, counted from where it begins.

    `forward` is the most in its forward pass and `left_forward` what is there after it, `left` after its backward
    pass; the most of that are `gradients` of the layer's moments. `first_run` are activations that a layer which is
    recomputed has in its forward pass alone, where gathered weights can make that the worst.
    """

    forward: FloatArray
    left_forward: FloatArray
    left: FloatArray
    first_run: FloatArray


NO_TRAFFIC = Traffic(forward=np.zeros(1), left_forward=np.zeros(1), left=np.zeros(1), first_run=NO_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerOnRank:
    """One layer of a kind.

    - `unit` are its weights, without `experts` where those are a unit of their own: `has_expert_unit`, None if nowhere;
    - `kept`: what it keeps of a micro-batch from its forward to its backward pass, and of that `kept_before_experts`
      as its experts are gathered;
    - `stays_as_highest`: what more it keeps where it is the stage's highest layer, of which nothing goes to the host;
      `comes_back_twice`: what of it returns from there for each of several operations that keep one tensor;
    - `beside_moments`: what of it stays while the layer is differentiated, whose `moments` hold all else;
    - of layers like it on a stage the parts `below_highest` chunk and `in_lowest`, and `summed_at_first`, that of which
      sums are made while the highest chunk is differentiated;
    - `before_scatter`: what stands beside what it keeps as its output is scattered or, of experts, weighed and put in
      order, at its forward pass's end;
    - `beside_return`: what stands beside it for a moment as tokens come back from its experts.
    - `paired`: what is live of it and of another micro-batch's, where one is differentiated beside the other;
    - `remembered`: what is held of it once it has been differentiated, until it goes forward again, and of that
      `handed_down` to the layer below as its output's gradient;
    - `traffic` is what an engine adds that knows no units; `is_multi_token` marks a layer for multi-token prediction;
    - `at_experts`: what is live as its experts are gathered backwards, `at_experts_again` at the end of a second run of
      them, beside the buffer `experts_gathered_again`, `at_experts_reduced` as they are reduced, and then the moments
      `beside_reduction`.
    """

    unit: Unit
    experts: Unit | None
    has_expert_unit: Mask
    is_recomputed: Mask
    kept: FloatArray
    kept_before_experts: FloatArray
    beside_moments: FloatArray
    moments: tuple[Moment, ...]
    below_highest: FloatArray
    in_lowest: FloatArray
    summed_at_first: FloatArray
    before_scatter: FloatArray
    beside_return: FloatArray
    at_experts: FloatArray
    at_experts_again: FloatArray
    experts_gathered_again: FloatArray
    at_experts_reduced: FloatArray
    beside_reduction: tuple[Moment, ...]
    paired: FloatArray = field(default_factory=lambda: NO_BYTES)
    stays_as_highest: FloatArray = field(default_factory=lambda: NO_BYTES)
    comes_back_twice: FloatArray = field(default_factory=lambda: NO_BYTES)
    remembered: FloatArray = field(default_factory=lambda: NO_BYTES)
    handed_down: FloatArray = field(default_factory=lambda: NO_BYTES)
    traffic: Traffic = NO_TRAFFIC
    is_multi_token: bool = False

    @property
    def buffers(self) -> tuple[FloatArray, FloatArray]:
        """Return what it is gathered into, and what its experts are."""
        return self.unit.buffer, NO_BYTES if self.experts is None else self.experts.buffer

    @property
    def copies(self) -> FloatArray:
        """Return its learning weights in the compute precision, as autocast copies them."""
        return self.unit.gradients

    @property
    def gradients(self) -> FloatArray:
        """Return its gradients as the rank keeps them."""
        return self.unit.shard
