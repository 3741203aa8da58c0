"""Stacks whose weights and whole gradients lie on the rank throughout: Megatron's main gradients, and the textbook.

Only activations come and go: a micro-batch's forward pass, its loss, and its backward pass from the head down to the
embedding, beside what waits of the micro-batches that a pipeline has in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.layouts.stages import layers_of_lowest
from plimsoll.planners.memory.layer_bytes import sums_at_end
from plimsoll.planners.memory.p2p_buffers import beside_interleaved_passes, received_gradient_bytes
from plimsoll.planners.memory.programs.at_rest import (
    AtRest,
    at_rest,
    begin,
    others_at_ends,
    update,
)
from plimsoll.planners.memory.programs.multi_token import MultiToken, multi_token
from plimsoll.planners.memory.programs.paired import held_by_outputs, waiting_bytes
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.remembered import remembered_below_head
from plimsoll.planners.memory.programs.stage_layers import stage_layers
from plimsoll.planners.memory.steps.layers import Layers
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, mask_of, only, opposite, some
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD, REDUCTION, Held, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidentStage:
    """Whole bytes of one rank of a stage.

    `others` are the micro-batches that wait while one is at work; where passes come in `pairs`, with what these leave.
    `message` is the residual stream of a micro-batch, `received_in_buffers` the next stage's gradient where P2P buffers
    hold it, `received_apart` elsewhere.
    `forward_end` is what stands beside what the highest layer keeps as its forward pass ends.
    As a micro-batch goes forward, `received_before` is the gradient that was received for the next one. `before` is the
    input of the one that was differentiated last, whose output a variable of the schedule still holds (Megatron-Core,
    pipeline_parallel/schedules.py, `output_tensor`); `sent` is the gradient of that input, which was sent.
    An interleaved stage holds none of the former, but its `stale` messages, and as it takes turns the next pass's input
    (`in_turn`) and `output_before`, of the pass that has been (`BesidePasses`); of a pair it holds what is `of_output`.
    Its other chunks go on meanwhile: `others_at_embedding` wait as the lowest one is through, `others_at_head` as the
    highest begins.
    `unsaved` is what the first layer need not keep behind a frozen embedding. Of layers whose inputs go to the host,
    `inputs` are those that the schedule names still, and `embedded` is the one that the model's forward pass does;
    where the highest layer `returns_highest` it has been on the host as the others have.
    `tied_gradient` is the sum of a tied
    table's gradients, of which the head's is empty: autograd adds none into a tensor that another holds. `further` is
    what layers for multi-token prediction hold.
    """

    rest: AtRest
    layers: Layers
    pairs: Mask
    others: FloatArray
    others_at_embedding: FloatArray
    others_at_head: FloatArray
    message: FloatArray
    forward_end: FloatArray
    received_in_buffers: FloatArray
    received_apart: FloatArray
    before: FloatArray
    sent: FloatArray
    stale: FloatArray
    in_turn: FloatArray
    output_before: FloatArray
    of_output: FloatArray
    received_before: FloatArray
    unsaved: FloatArray
    inputs: FloatArray
    embedded: FloatArray
    returns_highest: Mask
    head: FloatArray
    logits: FloatArray
    embedding_gradient: FloatArray
    tied_gradient: FloatArray
    at_embedding: FloatArray
    further: MultiToken
    remembered_below_head: FloatArray


def resident_stage(asked: Question) -> ResidentStage:
    """Return the quantities of the program."""
    layouts, rows, job, held, active = asked.layouts, asked.rows, asked.job, asked.held, asked.active
    kernels = job.profile.kernels
    received = received_gradient_bytes(layouts, rows, job, active.p2p_message)
    adds_up = np.bool_(kernels.transformer_engine) & rows.has_embedding
    embedding = np.where(adds_up, job.precision.compute_bytes * (held.root_elements - held.head_elements), 0.0)
    goes_on = layouts.micro_batches(job.global_batch_size) > rows.in_flight
    further = multi_token(asked)
    # The sum with a gradient that is no empty one is that gradient's own tensor.
    is_summed = rows.has_head & np.bool_(job.model.tied_head and job.multi_token is None)
    holds_last = np.bool_(kernels.transformer_engine) & (layouts.pipeline_parallel > 1) & goes_on
    is_interleaved = layouts.virtual_pipeline > 1
    beside = beside_interleaved_passes(layouts, rows, job)
    message = np.ceil(active.p2p_message)
    others = np.maximum(rows.in_flight - 1.0, 0.0)
    at_embedding, at_head = others_at_ends(asked, others)
    waiting = waiting_bytes(asked, others, at_embedding, at_head)
    sends = holds_last & (is_interleaved | ~rows.has_embedding)
    overlaps = np.bool_(kernels.transformer_engine)
    named = active.layers[0].parts.named_input
    # Of several layers the lowest has sent its input, and emptied it for all who name it.
    is_emptied = layouts.activation_offload & (active.layers[0].parts.emptied_input > 0) & (rows.layers > 1)
    return ResidentStage(
        rest=at_rest(asked, keeps_gradients=np.ones(1, dtype=bool)),
        layers=stage_layers(asked, gradient_bytes=None),
        pairs=waiting.pairs,
        others=np.ceil(waiting.others),
        others_at_embedding=np.ceil(waiting.at_embedding),
        others_at_head=np.ceil(waiting.at_head),
        message=message,
        forward_end=NO_BYTES
        if job.profile.is_textbook
        else np.ceil(sums_at_end(job, autocast=False) * active.p2p_message),
        received_in_buffers=some(np.ceil(received)) if kernels.pipelines_keep_messages else NO_BYTES,
        received_apart=NO_BYTES if kernels.pipelines_keep_messages else some(np.ceil(received)),
        before=some(np.where(sends & ~is_interleaved & ~is_emptied, message, 0.0)),
        sent=some(np.where(sends, message, 0.0)),
        stale=some(np.where(overlaps, beside.stale * message, 0.0)),
        in_turn=some(np.where(overlaps & beside.turn, message, 0.0)),
        output_before=some(np.where(overlaps & beside.turn & ~layouts.expert_overlap, message, 0.0)),
        of_output=some(np.ceil(held_by_outputs(asked))),
        received_before=some(np.where(holds_last, np.ceil(received), 0.0)),
        unsaved=some(np.ceil(active.first_adapter_savings)),
        inputs=some(np.ceil(active.parts_named)),
        embedded=some(np.ceil(np.where(layouts.activation_offload & rows.has_embedding, named, 0.0))),
        returns_highest=mask_of(goes_on & (is_interleaved | ~rows.has_head)),
        head=np.ceil(active.head),
        logits=np.ceil(active.logits),
        embedding_gradient=np.ceil(embedding),
        tied_gradient=some(np.where(is_summed, np.ceil(embedding), 0.0)),
        at_embedding=np.where(adds_up, np.ceil(_stream_gradient(asked) + received), 0.0),
        further=further,
        remembered_below_head=remembered_below_head(asked),
    )


def _stream_gradient(asked: Question) -> FloatArray:
    """Return the gradient that the lowest layer makes for the embedding; without one it is that received."""
    lowest = layers_of_lowest(asked.layouts, asked.rows.pipelines)
    return np.where(lowest > 0, asked.active.p2p_message, 0.0)


def resident(step: Step, stage: ResidentStage) -> None:
    """Go through one step."""
    rest = stage.rest
    lasting = begin(step, rest)
    others = step.take("activations", "micro-batches that wait", stage.others)
    step.phase = FORWARD
    stale = step.take("activations", "input received as the pipeline was full, and its gradient", stage.stale)
    sent = step.take("activations", "gradient sent last", stage.sent)
    received_before = step.take("activations", "gradient received next", stage.received_before)
    input_before = step.take("activations", "input of the micro-batch before", stage.before)
    kept: dict[object, Held] = {}
    embedded = step.take("activations", "embedding's output", stage.embedded)
    for layer in step.each(stage.layers):
        kept[layer] = step.take("activations", "kept by the layer", layer.bytes.kept)
        with step.where(layer.is_lowest):
            step.shrink(kept[layer], stage.unsaved)
            with step.where(opposite(layer.is_highest)):
                step.grow(kept[layer], stage.inputs)
        with step.where(layer.is_highest):
            step.grow(kept[layer], layer.bytes.stays_as_highest)
            with step.where(stage.returns_highest):
                step.grow(kept[layer], layer.bytes.comes_back_twice)
        step.drop(step.take("activations", "experts' tokens returned", layer.bytes.beside_return))
    step.drop(step.take("activations", "sums at the forward pass's end", stage.forward_end))
    step.resize(others, stage.others_at_head)
    head = step.take("activations", "kept by the head", stage.head)
    below_head = step.take("activations", "inputs that scores of other chunks hold", stage.remembered_below_head)
    further_logits = step.take("logits", "kept of further tokens' logits", stage.further.logits)
    named_logits = step.take("logits", "logits of the last of them", stage.further.named_logits)
    logits = step.take("logits", "logits", stage.logits)
    next_input = step.take("activations", "input of the next forward pass", stage.in_turn)
    step.phase = BACKWARD
    step.drop(logits, named_logits, received_before, input_before, further_logits, embedded)
    step.drop(step.take("gradients", "sum of the head's empty gradients", stage.further.head_sum), head)
    step.resize(others, stage.others)
    output = step.take("activations", "output of the last forward pass", stage.output_before)
    table = step.carry("gradients", "table's gradient by further tokens")
    step.resize(table, stage.further.tied_sum)
    # The highest layer's own moments have it, as their residual's gradient.
    received = step.take("activations", "gradient of the next stage", NO_BYTES)
    step.shrink(lasting.p2p_buffers, stage.received_in_buffers)
    remembered = step.carry("activations", "inputs that remembered scores hold, and their gradients")
    with step.where(stage.pairs):
        step.drop(next_input)
    for layer in step.each(stage.layers, downwards=True):
        step.resize(kept[layer], layer.bytes.beside_moments)
        twice = step.take("activations", "what comes back twice from the host", layer.bytes.comes_back_twice)
        with step.where(layer.is_highest), step.where(opposite(stage.returns_highest)):
            step.shrink(twice, layer.bytes.comes_back_twice)
        step.moments(layer.bytes.moments, unsaved=only(layer.is_lowest, stage.unsaved))
        step.drop(twice)
        with step.where(stage.pairs), step.where(layer.is_highest):
            held = step.take("activations", "gradient received, and what the output's graph holds", stage.of_output)
            step.drop(step.take("activations", "layers of two micro-batches", layer.bytes.paired), held)
        step.drop(kept[layer])
        step.grow(remembered, layer.bytes.remembered)
        with step.where(layer.is_highest):
            step.shrink(remembered, layer.bytes.handed_down)
            step.drop(below_head)
        if layer.bytes.is_multi_token:
            beside = step.take("activations", "gradients of stream and embedding", stage.further.at_table)
            step.drop(step.take("gradients", "embedding's gradient", stage.further.table_gradient), beside)
            step.resize(table, stage.further.table_kept)
        with step.where(layer.is_highest):
            step.grow(received, stage.received_apart)
            step.grow(lasting.p2p_buffers, stage.received_in_buffers)
    with step.where(stage.pairs):
        step.grow(next_input, stage.in_turn)
    step.drop(received, sent, stale)
    step.resize(others, stage.others_at_embedding)
    gradient = step.take("activations", "stream's gradient", stage.at_embedding)
    of_embedding = step.take("gradients", "embedding's gradient", stage.embedding_gradient)
    step.drop(gradient)
    step.drop(step.take("gradients", "its sum with the head's empty one", stage.tied_gradient), of_embedding, table)
    step.drop(lasting.passes, next_input, output)
    step.phase = REDUCTION
    step.drop(others)
    update(step, rest)
    step.drop(remembered)
