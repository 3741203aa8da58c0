"""How FSDP gathers and reduces the units of its weights.

FSDP2 gathers a unit into a buffer and copies it out of it. In the forward pass the buffer stays until the next unit has
been copied out, in the backward pass the next unit is gathered ahead, and a unit's reduction ends as the next one's
begins (torch, distributed/fsdp/_fully_shard/_fsdp_param_group.py). FSDP1's weights are views of what they were
gathered into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.chunks import WHOLE
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, Unit, either, opposite
from plimsoll.planners.memory.steps.step import Held, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathering:
    """When which layouts gather and reduce.

    Units are let go of after their forward pass where they are gathered `by_layer`, else after their backward pass or,
    `for_the_step`, after the last micro-batch. `copies_out` is false where weights are views of a buffer. `adds_up`
    marks gradients that micro-batches before have left, `waits_for_replicas` those that are summed over replicas, whose
    outputs last until all are, `sends` shards that go to the host; `casts_shards` says that they are narrower than the
    reduction's output.
    """

    by_layer: Mask
    for_the_step: Mask
    copies_out: bool
    adds_up: Mask
    waits_for_replicas: Mask
    sends: Mask
    casts_shards: bool


class Units:
    """The units of a stage during a step: what is gathered, and what is being reduced."""

    def __init__(self, step: Step, when: Gathering) -> None:
        self._step, self._when = step, when
        self._stays_whole = opposite(when.by_layer)
        self._reduces_at_once = opposite(when.for_the_step)
        self._lets_shards_go = either(when.adds_up, when.sends)
        self._keeps_shards = opposite(self._lets_shards_go)
        self._lets_outputs_go = opposite(when.waits_for_replicas)
        # Whether sums are there already and no larger for a further micro-batch.
        self.has_sums = False
        self._buffer = step.carry("communication", "gathered")
        self._ahead = step.carry("communication", "gathered ahead")
        self._experts_ahead = step.carry("communication", "experts gathered ahead")
        self._reduction = step.carry("communication", "reduction")
        self._outputs = step.carry("gradients", "outputs of reductions")
        self._shards = step.carry("gradients", "shards")
        step.leave(self._shards)

    def open_root(self, unit: Unit) -> Held:
        """Gather the unit that all others are in; FSDP1 keeps it until its backward pass.

        Source: torch, distributed/fsdp/_runtime_utils.py, `_post_forward_reshard`.
        """
        if self._when.copies_out:
            return self.open_forward(unit)
        return self._step.take("communication", "weights", unit.weights)

    def open_root_again(self, unit: Unit, whole: Held) -> None:
        """Gather it again for its backward pass, where its forward pass's end lets go of it, or already has."""
        if self._when.copies_out:
            if whole.amount is not NO_BYTES:
                self.close_forward(whole)
            self.gather_ahead(unit.buffer)
            self.open_backward(unit, whole)

    def open_forward(self, unit: Unit) -> Held:
        """Gather a unit and return its weights; the buffer of the one before is let go of."""
        step = self._step
        whole = step.take("communication", "weights", NO_BYTES)
        if self._when.copies_out:
            ahead = step.take("communication", "gathered", unit.buffer)
            step.grow(whole, unit.weights)
            step.drop(self._buffer)
            step.hand_over(ahead, self._buffer)
            return whole
        with step.where(self._when.by_layer):
            ahead = step.take("communication", "gathered", unit.buffer)
            step.drop(self._buffer)
            step.hand_over(ahead, self._buffer)
        with step.where(self._stays_whole):
            step.grow(whole, unit.weights)
        return whole

    def close_forward(self, whole: Held) -> None:
        """Let go of a unit's weights, if they are gathered again for the backward pass."""
        with self._step.where(self._when.by_layer):
            self._step.drop(whole)

    def drop_buffer(self) -> None:
        """Let go of the buffer that was gathered into last."""
        self._step.drop(self._buffer)

    def gather_ahead(self, buffer: FloatArray, experts: FloatArray = NO_BYTES) -> None:
        """Gather the next unit of the backward pass into a buffer, and a layer's experts with it."""
        with self._step.where(self._when.by_layer):
            self._step.grow(self._ahead, buffer)
            self._step.grow(self._experts_ahead, experts)

    def open_backward(self, unit: Unit, whole: Held) -> None:
        """Copy a unit that was gathered ahead out of its buffer."""
        with self._step.where(self._when.by_layer):
            if self._when.copies_out:
                self._step.grow(whole, unit.weights)
                self._step.drop(self._ahead)
            else:
                self._step.drop(self._ahead)
                self._step.grow(whole, unit.weights)

    def open_experts(self, unit: Unit, whole: Held) -> None:
        """Copy a layer's experts out of their buffer, beside that of the next layer's."""
        with self._step.where(self._when.by_layer):
            self._step.grow(whole, unit.weights)
            self._step.shrink(self._experts_ahead, unit.buffer)

    def close_backward(
        self, unit: Unit, whole: Held, gradients: Held, summed: Held, *, part: FloatArray = WHOLE
    ) -> None:
        """Let go of a unit's weights and reduce its gradients, or add up `part` of them until the last micro-batch."""
        step, when = self._step, self._when
        with step.where(self._reduces_at_once):
            step.drop(whole)
            self._reduce(unit, gradients, unit.last_gradient)
        with step.where(when.for_the_step):
            if not self.has_sums:
                # One after the other (torch, distributed/fsdp/_fully_shard/_fsdp_param.py,
                # `to_accumulated_grad_if_needed`).
                step.resize(gradients, unit.last_matrix_gradient)
                self.sum_up(unit, summed, part)
            step.drop(gradients)

    def sum_up(self, unit: Unit, summed: Held, part: FloatArray = WHOLE) -> None:
        """Have a unit's sum of gradients, or a part where not all units like it have one."""
        self._step.resize(summed, unit.summed if part is WHOLE else np.ceil(unit.summed * part))

    def reduce_summed(self, unit: Unit, whole: Held, summed: Held) -> None:
        """Reduce what micro-batches have summed of a unit, and let go of its weights."""
        step = self._step
        step.drop(whole)
        self._reduce(unit, summed, unit.last_summed)

    def leave_part(self, unit: Unit, whole: Held, summed: Held, part: FloatArray) -> FloatArray:
        """Have a part of all units like it left, the others reduced; return the shards that this made."""
        self._step.resize(whole, np.ceil(unit.weights * part))
        self._step.resize(summed, np.ceil(unit.summed * part))
        return np.ceil(unit.shard * (1.0 - part))

    def finish(self) -> None:
        """Wait for the last reduction, and for the sums over replicas."""
        self._step.drop(self._reduction, self._outputs)

    def _reduce(self, unit: Unit, gradients: Held, last: FloatArray) -> None:
        """Copy gradients into the reduction's buffer, let go of them, and make the shard.

        A variable of the loop that copies them holds the last one to the end (torch,
        distributed/fsdp/_fully_shard/_fsdp_collectives.py, `foreach_reduce`: `unsharded_grad`).
        """
        step, when = self._step, self._when
        step.drop(self._reduction)
        step.grow(self._reduction, unit.reduced)
        step.resize(gradients, last)
        if when.casts_shards:
            step.grow(self._outputs, unit.output)
            step.grow(self._shards, unit.shard)
        else:
            with step.where(self._keeps_shards):
                step.grow(self._shards, unit.shard)
            with step.where(self._lets_shards_go):
                step.grow(self._outputs, unit.output)
        step.drop(gradients)
        with step.where(self._lets_outputs_go), step.where(True if when.casts_shards else self._lets_shards_go):
            step.shrink(self._outputs, unit.output)
        if when.casts_shards:
            with step.where(self._lets_shards_go):
                step.shrink(self._shards, unit.shard)
