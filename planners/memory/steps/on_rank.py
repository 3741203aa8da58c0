"""What a program adds up of one layer: whole bytes of one rank, for every layout at once.

An array varies along the axes of the layouts, and along one of stages before them where it differs between those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray


class Moment(NamedTuple):
    """What a layer holds at one moment of its own backward pass: activations, and gradients before their reduction."""

    name: str
    activations: FloatArray
    gradients: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Weights that are gathered and reduced together.

    `weights` are whole, in the compute precision, and `buffer` is what they are gathered into. `gradients` are whole
    too; they are reduced in a buffer of `reduced` bytes and leave a rank its `shard`, on the device or on its way to
    the host.
    """

    weights: FloatArray
    buffer: FloatArray
    gradients: FloatArray
    reduced: FloatArray
    shard: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """What an engine that gathers and reduces tensor by tensor holds beside a layer, counted from where it begins.

    `forward` is the most in its forward pass and `left_forward` what is there after it, `left` after its backward
    pass; the most of that are `gradients` of the layer's moments.
    """

    forward: FloatArray
    left_forward: FloatArray
    left: FloatArray


NO_TRAFFIC = Traffic(forward=np.zeros(1), left_forward=np.zeros(1), left=np.zeros(1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerOnRank:
    """One layer of a kind.

    - `unit` are its weights, without `experts` that are a unit of their own;
    - `kept`: what it keeps of a micro-batch from its forward to its backward pass, and of that `kept_before_experts`
      as its experts are gathered;
    - `beside_moments`: what of it stays while the layer is differentiated, whose `moments` hold all else;
    - `beside_return`: what stands beside it for a moment as tokens come back from its experts.
    - `traffic` is what an engine adds that knows no units;
    - `at_experts`: what is live as its experts are gathered backwards, `at_experts_again` at the end of a second run of
      them, beside the buffer `experts_gathered_again`, `at_experts_reduced` as they are reduced, and then the moments `beside_reduction`.
    """

    unit: Unit
    experts: Unit
    is_recomputed: BoolArray | bool
    kept: FloatArray
    kept_before_experts: FloatArray
    beside_moments: FloatArray
    moments: tuple[Moment, ...]
    beside_return: FloatArray
    at_experts: FloatArray
    at_experts_again: FloatArray
    experts_gathered_again: FloatArray
    at_experts_reduced: FloatArray
    beside_reduction: tuple[Moment, ...]
    traffic: Traffic = NO_TRAFFIC
