"""Fully sharded data parallelism: a step of stacks that gather weights unit by unit and reduce gradients likewise.

A pipeline gathers a stage's weights once, and sums whole gradients until its last micro-batch: the first micro-batch
that is differentiated finds no sums and all that wait, a later one all sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.at_rest import AtRest, begin, update
from plimsoll.planners.memory.programs.beside_policy import BesidePolicy, run_beside_policy
from plimsoll.planners.memory.programs.sharded_units import Gathering, Units
from plimsoll.planners.memory.steps.layers import Layer, Layers
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, Moment, Unit, only, opposite, without
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD, REDUCTION, Held, Step


class LaterPass(NamedTuple):
    """A later micro-batch of a pipeline, where there is one.

    `others` wait meanwhile.
    """

    is_there: Mask
    others: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """The chunks of interleaved stages: the lowest has the embedding and the highest the head.

    Each is done with its last micro-batch before the next lower one is, and reduces its gradients then. As the highest
    is done `others` of the micro-batches wait in lower ones. Where stages go through their chunks once,
    `goes_round_once`, a lower one has sums of its own then alone; while the lowest is differentiated
    `others_of_lowest` wait. Stages that `have_head` have it in a unit with the embedding where that is one table.
    """

    are_there: Mask
    have_head: Mask
    goes_round_once: Mask
    others: FloatArray
    others_of_lowest: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardedStage:
    """Whole bytes of one rank of a stage.

    - `first` is the unit of the embedding, or of embedding, last norm and head together; `head` those of last norm and
      head, None where they are not one of their own. With the `loss_inside_root`, gradients enter through its unit;
      with the `loss_behind_root` it is let go of before the loss, and gathered again once that is differentiated. Where
      it `gathers_before_loss`, the highest layer is gathered before the loss is differentiated, and else behind it.
    - `others` are the micro-batches that wait while the first is differentiated, `later` the passes of later ones;
      `chunks` are None where no stage has several.
    - `message` is the residual stream of a micro-batch, `embedded` the embedding's output that the model holds,
      `received_in_buffers` the next stage's gradient where P2P buffers hold it, `received_apart` elsewhere.
    - `forward_end` stands beside the stream and what the highest layer keeps as its forward pass ends.
    - `unsaved` is what the first layer need not keep behind a frozen embedding, `stashed` what waits for its copy to
      the host, `held_inputs` what hooks of a finished layer hold.
    - `head_kept`: at the head, and `unsaved_head_input` what the model holds there until the loss is known;
      `forward_logits` and `kept_logits` at the loss and after it, `logits` and `logits_gradient` as it is
      differentiated and after that; `loss_lets_go` what a fused loss needs no more; `last_norm` as the norm before the
      head is differentiated.
    - `head_gradient` is the head's own; where the loss goes by chunks, `later_head_gradient` is that of another chunk,
      and `later_logits_gradient` what is left of the logits' by then. The embedding's is made as `whole_embedding`;
      tensor parallelism makes `cut_embedding` of it, otherwise `uncut_embedding` stays. Both are of one table where
      that `is_tied`, and `sum_of_both` is made of them where they are not added up in place. Micro-batches of a
      pipeline add the whole one up as the `whole_sum`, of which `cut_sum` is made before it is reduced.
    """

    rest: AtRest
    layers: Layers
    gathering: Gathering
    first: Unit
    head: Unit | None
    loss_inside_root: bool
    loss_behind_root: bool
    closes_before_loss: bool
    gathers_before_loss: bool
    others: FloatArray
    later: tuple[LaterPass, ...]
    message: FloatArray
    forward_end: FloatArray
    embedded: FloatArray
    received_in_buffers: FloatArray
    received_apart: FloatArray
    unsaved: FloatArray
    stashed: FloatArray
    held_inputs: FloatArray
    head_kept: FloatArray
    unsaved_head_input: FloatArray
    loss_lets_go: FloatArray
    forward_logits: FloatArray
    logits: FloatArray
    kept_logits: FloatArray
    last_norm: FloatArray
    logits_gradient: FloatArray
    head_gradient: FloatArray
    later_logits_gradient: FloatArray
    later_head_gradient: FloatArray
    whole_embedding: FloatArray
    uncut_embedding: FloatArray
    is_tied: Mask
    cut_embedding: FloatArray
    whole_sum: FloatArray
    cut_sum: FloatArray
    sum_of_both: FloatArray
    chunks: Chunks | None
    head_casts: tuple[Moment, ...]
    companions: tuple[BesidePolicy, ...]


def sharded(step: Step, stage: ShardedStage) -> None:
    """Go through one step."""
    lasting = begin(step, stage.rest)
    others = step.take("activations", "micro-batches that wait", NO_BYTES)
    work = _Passes(step, stage, lasting.p2p_buffers)
    work.forward(others)
    run_beside_policy(step, stage.companions)
    work.backward()
    for later in stage.later:
        with step.where(later.is_there):
            step.resize(others, later.others)
            work.forward_again()
            work.backward()
    if stage.chunks is not None:
        with step.where(stage.chunks.are_there):
            work.go_down_chunks(stage.chunks, others)
    step.phase = REDUCTION
    step.drop(lasting.passes)
    with step.where(stage.gathering.for_the_step):
        step.drop(others)
        work.reduce_sums()
    work.units.finish()
    with step.where(opposite(stage.gathering.for_the_step)):
        step.drop(others)
    update(step, stage.rest)


class _Passes:
    """The passes of a micro-batch, and the pieces that outlast them."""

    def __init__(self, step: Step, stage: ShardedStage, p2p_buffers: Held) -> None:
        self.step, self.stage, self.p2p_buffers = step, stage, p2p_buffers
        self.units = Units(step, stage.gathering)
        self.whole: dict[object, Held] = {}
        self.summed: dict[object, Held] = {}
        self.kept: dict[Layer, Held] = {}
        self.gradient = step.carry("activations", "gradient of the stream")
        self.is_in_lowest = False
        self.early = step.carry("gradients", "shards of higher chunks")
        self.reaches_embedding: Mask = True if stage.chunks is None else opposite(stage.chunks.goes_round_once)
        self.hooked = step.carry("activations", "inputs that hooks hold")

    def forward(self, others: Held) -> None:
        """Go through a micro-batch's forward pass and its loss; while weights are gathered for it no `others` wait."""
        step, stage, units = self.step, self.stage, self.units
        step.phase = FORWARD
        self.whole["first"] = units.open_root(stage.first)
        self.stream = step.take("activations", "residual stream", stage.message)
        if stage.head is not None:
            units.close_forward(self.whole["first"])
        self.stashed = step.take("activations", "on its way to the host", stage.stashed)
        embedded = step.take("activations", "embedding's output", NO_BYTES)
        for layer in step.each(stage.layers):
            # Later layers find more that is kept.
            with step.quiet(layer.is_between):
                self._layer_forward(layer)
            with step.where(layer.is_lowest):
                step.grow(embedded, stage.embedded)
        step.drop(embedded, self.stashed)
        if stage.head is not None:
            self.whole["head"] = units.open_forward(stage.head)
        if stage.gathering.for_the_step is not False:
            with step.where(stage.gathering.for_the_step):
                units.drop_buffer()
                step.resize(others, stage.others)
            for layer in step.each(stage.layers):
                with step.where(layer.is_highest):
                    self._scatter(layer)
        self._loss()

    def _layer_forward(self, layer: Layer) -> None:
        step, units, own = self.step, self.units, layer.bytes
        self.whole[layer] = units.open_forward(own.unit)
        self.kept[layer] = step.take("activations", "kept by the layer", own.kept_before_experts)
        if own.experts is not None:
            with step.where(own.has_expert_unit):
                self.whole[layer, "experts"] = units.open_forward(own.experts)
                step.resize(self.kept[layer], self._kept(layer))
                units.close_forward(self.whole[layer, "experts"])
        step.resize(self.kept[layer], self._kept(layer))
        self._scatter(layer)
        units.close_forward(self.whole[layer])

    def _scatter(self, layer: Layer) -> None:
        step = self.step
        step.drop(step.take("activations", "output before its scatter", layer.bytes.before_scatter))
        if layer.is_highest is not False:
            with step.where(layer.is_highest):
                step.drop(step.take("activations", "sums at the forward pass's end", self.stage.forward_end))

    def forward_again(self, *, has_loss: bool = True) -> None:
        """Go through a later micro-batch's forward pass and loss, with weights and a part of the sums there still."""
        step, stage = self.step, self.stage
        step.phase = FORWARD
        self.units.has_sums = has_loss
        with step.quiet():
            if not self.units.has_sums:
                with step.where(self.reaches_embedding):
                    self.units.sum_up(stage.first, self._summed("first"))
                for layer in step.each(stage.layers):
                    self._sum(layer)
        for layer in step.each(stage.layers):
            is_quiet = layer.bytes.before_scatter is NO_BYTES and layer.is_highest is False
            with step.quiet(layer.is_between or is_quiet):
                step.resize(self.kept[layer], self._kept(layer))
                self._scatter(layer)
        if has_loss:
            self._loss()

    def _kept(self, layer: Layer) -> FloatArray:
        return without(layer.bytes.kept, self._unsaved(layer))

    def _unsaved(self, layer: Layer) -> FloatArray:
        return only(layer.is_lowest, self.stage.unsaved)

    def _loss(self) -> None:
        step, stage = self.step, self.stage
        step.resize(self.stream, stage.head_kept)
        for moment in stage.head_casts[:1]:
            step.drop(step.take("activations", moment.name, moment.activations))
        if stage.closes_before_loss or stage.loss_behind_root:
            self.units.drop_buffer()
        if stage.loss_behind_root:
            self.units.close_forward(self.whole["first"])
        self.logits = step.take("logits", "logits", stage.forward_logits)
        seen = step.take("activations", "input of a frozen head", stage.unsaved_head_input)
        step.resize(self.logits, stage.kept_logits)
        step.drop(seen)
        self.units.drop_buffer()

    def backward(self, *, has_loss: bool = True) -> None:
        """Go through a micro-batch's backward pass, from the head down to the embedding."""
        step, stage, units = self.step, self.stage, self.units
        step.phase = BACKWARD
        step.shrink(self.stream, stage.loss_lets_go)
        if stage.loss_inside_root:
            units.open_root_again(stage.first, self.whole["first"])
            units.gather_ahead(*stage.layers.highest_buffers())
        if stage.gathers_before_loss:
            units.gather_ahead(*stage.layers.highest_buffers())
        if has_loss:
            step.resize(self.logits, stage.logits)
            step.resize(self.logits, stage.logits_gradient)
        if stage.loss_behind_root:
            units.open_root_again(stage.first, self.whole["first"])
        if not (stage.loss_inside_root or stage.gathers_before_loss):
            units.gather_ahead(*stage.layers.highest_buffers())
        head = self._head() if has_loss else step.take("gradients", "head's gradient", NO_BYTES)
        step.grow(self.gradient, stage.message)
        if has_loss:
            self._close_head(head)
        # The highest layer's own moments have it, as their residual's gradient.
        received = step.take("activations", "gradient of the next stage", NO_BYTES)
        step.shrink(self.p2p_buffers, stage.received_in_buffers)
        for layer in step.each(stage.layers, downwards=True):
            self._layer(layer)
            with step.where(layer.is_highest):
                step.grow(received, stage.received_apart)
                step.grow(self.p2p_buffers, stage.received_in_buffers)
        step.drop(received, self.hooked)
        with step.where(self.reaches_embedding):
            self._embedding(head)
        if stage.chunks is not None and stage.head is None:
            with step.where(opposite(self.reaches_embedding)), step.where(stage.chunks.have_head):
                units.close_backward(stage.first, self.whole["first"], head, self._summed("first"))
        step.drop(self.gradient)

    def _head(self) -> Held:
        """Differentiate the head; return its whole gradient."""
        step, stage = self.step, self.stage
        for moment in stage.head_casts[1:]:
            held = step.take("logits", moment.name, moment.gradients)
            step.drop(step.take("activations", moment.name, moment.activations), held)
        gradient = step.take("gradients", "head's gradient", stage.head_gradient)
        if stage.later_head_gradient is not NO_BYTES:
            step.resize(self.logits, stage.later_logits_gradient)
            step.drop(step.take("gradients", "head's gradient of another chunk", stage.later_head_gradient))
        step.drop(self.logits)
        step.resize(self.stream, stage.last_norm)
        step.drop(self.stream)
        return gradient

    def _close_head(self, gradient: Held) -> None:
        stage = self.stage
        if stage.head is not None:
            summed = self._summed("head")
            self.units.close_backward(stage.head, self.whole["head"], gradient, summed)

    def _layer(self, layer: Layer) -> None:
        step, units, own = self.step, self.units, layer.bytes
        units.open_backward(own.unit, self.whole[layer])
        units.gather_ahead(*layer.buffers_below(self._lowest()))
        step.drop(self.gradient)
        step.resize(self.kept[layer], own.beside_moments)
        if own.experts is not None:
            with step.where(own.has_expert_unit):
                self._open_experts(layer, own.experts)
        step.moments(own.moments, unsaved=self._unsaved(layer))
        if own.experts is not None:
            with step.where(own.has_expert_unit):
                self._close_experts(layer, own.experts)
        step.drop(self.kept[layer])
        step.grow(self.gradient, self.stage.message)
        gradients = step.take("gradients", "layer's gradients", own.unit.gradients)
        units.close_backward(own.unit, self.whole[layer], gradients, self._summed(layer), part=self._part(layer))
        step.grow(self.hooked, only(own.is_recomputed, self.stage.held_inputs))

    def _open_experts(self, layer: Layer, experts: Unit) -> None:
        """Gather experts that are a unit of their own, beside all that the layer holds then."""
        step, own = self.step, layer.bytes
        live = step.take("activations", "layer before its experts", without(own.at_experts, self._unsaved(layer)))
        self.units.open_experts(experts, self.whole[layer, "experts"])
        step.drop(live)
        again = step.take("activations", "experts run again", without(own.at_experts_again, self._unsaved(layer)))
        with step.where(self.stage.gathering.by_layer):
            buffer = step.take("communication", "experts gathered again", own.experts_gathered_again)
        step.drop(again, buffer)

    def _close_experts(self, layer: Layer, experts: Unit) -> None:
        """Reduce experts that are a unit of their own, and differentiate the rest of the layer meanwhile."""
        step, own = self.step, layer.bytes
        unsaved = self._unsaved(layer)
        live = step.take("activations", "layer behind its experts", without(own.at_experts_reduced, unsaved))
        gradients = step.take("gradients", "experts' gradients", experts.gradients)
        held = self.whole[layer, "experts"]
        self.units.close_backward(experts, held, gradients, self._summed((layer, "experts")), part=self._part(layer))
        step.drop(live)
        step.moments(own.beside_reduction, unsaved=unsaved)

    def _embedding(self, head: Held) -> None:
        """Differentiate the embedding, and reduce the unit that it is in."""
        step, stage, units = self.step, self.stage, self.units
        if stage.head is not None:
            units.open_backward(stage.first, self.whole["first"])
        gradients = step.take("gradients", "embedding's gradient", stage.whole_embedding)
        step.drop(self.gradient)
        cut = step.take("gradients", "embedding's gradient, cut", stage.cut_embedding)
        both = step.take("gradients", "sum of a tied table's gradients", stage.sum_of_both)
        with step.where(stage.is_tied):
            step.drop(head, cut)
        step.resize(gradients, stage.uncut_embedding)
        for held in (cut, both, head):
            step.hand_over(held, gradients)
        units.close_backward(stage.first, self.whole["first"], gradients, self._summed("first"))

    def reduce_sums(self) -> None:
        """Reduce what a pipeline's micro-batches have summed, unit by unit."""
        step, stage, units = self.step, self.stage, self.units
        step.grow(self._summed("first"), stage.cut_sum)
        step.shrink(self._summed("first"), stage.whole_sum)
        units.reduce_summed(stage.first, self.whole["first"], self._summed("first"))
        step.drop(self.early)
        for layer in step.each(stage.layers):
            # Each lets go of more than it makes.
            with step.quiet(layer.is_lowest is False):
                self._reduce_sums(layer)
        if stage.head is not None:
            has_head = True if stage.chunks is None else opposite(stage.chunks.are_there)
            # A last stage may have no layer, so that the head's is its first reduction.
            with step.where(has_head):
                units.reduce_summed(stage.head, self.whole["head"], self._summed("head"))

    def go_down_chunks(self, chunks: Chunks, others: Held) -> None:
        """Reduce all chunks but the lowest, and differentiate that."""
        step, stage, units = self.step, self.stage, self.units
        step.resize(others, chunks.others)
        self._leave_chunks(chunks)
        if stage.head is not None:
            units.reduce_summed(stage.head, self.whole["head"], self._summed("head"))
            units.finish()
        self.reaches_embedding = self.is_in_lowest = True
        self._leave_chunks(chunks)
        with step.where(chunks.goes_round_once):
            step.resize(others, chunks.others_of_lowest)
            self.forward_again(has_loss=False)
            self.backward(has_loss=False)

    def _leave_chunks(self, chunks: Chunks) -> None:
        """Let the highest chunk be reduced, or all above the lowest."""
        step, units = self.step, self.units
        with step.quiet():
            step.drop(self.early)
            for layer in step.each(self.stage.layers):
                own, experts = layer.bytes, layer.bytes.experts
                left = own.in_lowest if self.is_in_lowest else own.below_highest
                named = [(own.unit, layer)] if experts is None else [(own.unit, layer), (experts, (layer, "experts"))]
                for unit, name in named:
                    with step.where(True if unit is own.unit else own.has_expert_unit):
                        shard = units.leave_part(unit, self.whole[name], self._summed(name), left)
                        step.grow(self.early, shard)
                    with step.where(chunks.goes_round_once):
                        step.drop(self._summed(name))

    def _sum(self, layer: Layer) -> None:
        units, own = self.units, layer.bytes
        if own.experts is not None:
            units.sum_up(own.experts, self._summed((layer, "experts")), self._part(layer))
        units.sum_up(own.unit, self._summed(layer), self._part(layer))

    def _part(self, layer: Layer) -> FloatArray:
        """Return of which part of the layers like it the chunk at work makes sums, or all chunks so far."""
        return layer.bytes.in_lowest if self.is_in_lowest else layer.bytes.summed_at_first

    def _reduce_sums(self, layer: Layer) -> None:
        units, own = self.units, layer.bytes
        if own.experts is not None:
            name = (layer, "experts")
            with self.step.where(own.has_expert_unit):
                units.reduce_summed(own.experts, self.whole[name], self._summed(name))
        units.reduce_summed(own.unit, self.whole[layer], self._summed(layer))

    def _lowest(self) -> FloatArray:
        """Return the buffer that is gathered into while the lowest layer is differentiated."""
        return NO_BYTES if self.stage.head is None else self.stage.first.buffer

    def _summed(self, name: object) -> Held:
        if name not in self.summed:
            self.summed[name] = self.step.take("communication", "summed gradients", NO_BYTES)
        return self.summed[name]
