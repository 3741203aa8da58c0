"""Data parallelism with whole weights on every rank: torch's DistributedDataParallel, and one rank alone.

Autograd makes a gradient of each weight as its layer is differentiated, beside the copies that buckets hold for good.
Under autocast wider weights are copied as they are used; the copies of layers that are recomputed, or whose
activations are on the host, are let go of with the forward pass, the others with their layer's backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FULL, FloatArray, any_of
from plimsoll.planners.memory.activation_offload import SYNCHRONOUS, returns_weights
from plimsoll.planners.memory.activity import casts_weights
from plimsoll.planners.memory.holdings import in_zero_stages
from plimsoll.planners.memory.layer_bytes import sums_at_end
from plimsoll.planners.memory.preference_loss import compares
from plimsoll.planners.memory.programs.at_rest import AtRest, at_rest, begin, update
from plimsoll.planners.memory.programs.beside_policy import BesidePolicy, beside_policy, run_beside_policy
from plimsoll.planners.memory.programs.logits import (
    differentiated_logits,
    forward_logits,
    later_logits_gradient,
    logits_gradient,
    returned_logits,
    unsaved_head_input,
)
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.stage_layers import stage_layers
from plimsoll.planners.memory.steps.layers import Layer, Layers
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, mask_of, only, opposite, some, without
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD, REDUCTION, Held, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicatedStage:
    """Whole bytes of one rank.

    `buckets` hold a second copy of all gradients. `casts` says where weights are copied, `casts_again` where a layer's
    copies are let go of with the forward pass and made again; `head_copy` is the head's. `forward_logits` are those at
    the forward pass's end, `returned_logits` as the model has returned them, `logits` at the loss, `logits_gradient`
    beside the head's gradient, which autograd makes as `fresh_head` first; where the loss goes by chunks, two of them
    meet as `later_head_gradient` each, beside `later_logits_gradient`. The gradients of a table that `is_tied` meet at
    the backward pass's end.
    `returned_head` is what comes back of the head from the host. `unsaved_head_input` is there until
    the loss is known. `keeps_gradients` says that other micro-batches have left theirs.
    """

    rest: AtRest
    layers: Layers
    keeps_gradients: Mask
    buckets: FloatArray
    casts: Mask
    casts_again: Mask
    head_copy: FloatArray
    message: FloatArray
    forward_end: FloatArray
    stashed: FloatArray
    unsaved: FloatArray
    head_kept: FloatArray
    unsaved_head_input: FloatArray
    returned_head: FloatArray
    forward_logits: FloatArray
    returned_logits: FloatArray
    logits: FloatArray
    logits_gradient: FloatArray
    fresh_head: FloatArray
    head_gradient: FloatArray
    later_logits_gradient: FloatArray
    later_head_gradient: FloatArray
    embedding_gradient: FloatArray
    is_tied: Mask
    kept_logits: FloatArray
    companions: tuple[BesidePolicy, ...]


def replicated(step: Step, stage: ReplicatedStage) -> None:
    """Go through one step."""
    lasting = begin(step, stage.rest)
    step.leave(step.take("communication", "buckets", stage.buckets))
    copies, kept = _forward(step, stage)
    if stage.companions:
        step.resize(kept["logits"], stage.kept_logits)
        run_beside_policy(step, stage.companions)
    step.phase = BACKWARD
    head_copy, stream, logits = copies.pop("head"), kept.pop("head"), kept.pop("logits")
    step.resize(logits, stage.logits)
    step.resize(logits, stage.logits_gradient)
    returned = step.take("activations", "head from the host", stage.returned_head)
    gradients = step.carry("gradients", "gradients")
    fresh = step.take("gradients", "head's fresh gradient", stage.fresh_head)
    if stage.later_head_gradient is not NO_BYTES:
        step.resize(logits, stage.later_logits_gradient)
        step.drop(step.take("gradients", "head's gradients of two chunks", 2.0 * stage.later_head_gradient))
    step.drop(logits, stream, head_copy, returned)
    with step.where(opposite(stage.casts)):
        step.drop(fresh)  # which is the head's gradient
    head = step.take("gradients", "head's gradient", stage.head_gradient)
    with step.where(stage.casts):
        step.drop(fresh)
    with step.where(stage.keeps_gradients), step.where(opposite(stage.is_tied)):
        step.drop(head)
    for layer in step.each(stage.layers, downwards=True):
        with step.where(stage.casts), step.where(stage.casts_again):
            step.grow(copies[layer], layer.bytes.copies)
        step.resize(kept[layer], layer.bytes.beside_moments)
        step.moments(layer.bytes.moments, unsaved=only(layer.is_lowest, stage.unsaved))
        step.drop(kept[layer], copies[layer])
        with step.where(opposite(stage.keeps_gradients)):
            step.grow(gradients, layer.bytes.gradients)
    stream = step.take("activations", "gradient of the stream", stage.message)
    embedding = step.take("gradients", "embedding's gradient", stage.embedding_gradient)
    step.drop(stream)
    with step.where(stage.keeps_gradients):
        step.drop(embedding)
    with step.where(stage.is_tied):
        step.drop(head)
    with step.where(opposite(stage.keeps_gradients)):
        step.leave(gradients, head, embedding)
    step.drop(lasting.passes)
    step.phase = REDUCTION
    update(step, stage.rest)


def _forward(step: Step, stage: ReplicatedStage) -> tuple[dict[object, Held], dict[object, Held]]:
    """Go through the forward pass; return the copies of weights, and what layers, head and loss keep."""
    step.phase = FORWARD
    copies: dict[object, Held] = {}
    kept: dict[object, Held] = {}
    stream = step.take("activations", "residual stream", stage.message)
    stashed = step.take("activations", "on its way to the host", stage.stashed)
    for layer in step.each(stage.layers):
        with step.where(stage.casts):
            copies[layer] = step.take("parameters", "copies of weights", layer.bytes.copies)
        kept[layer] = step.take("activations", "kept by the layer", _kept(stage, layer))
    step.drop(step.take("activations", "sums at the forward pass's end", stage.forward_end), stashed)
    with step.where(stage.casts):
        copies["head"] = step.take("parameters", "copies of weights", stage.head_copy)
    step.resize(stream, stage.head_kept)
    kept["head"] = stream
    seen = step.take("activations", "head's input", stage.unsaved_head_input)
    kept["logits"] = step.take("logits", "logits", stage.forward_logits)
    step.drop(seen)
    step.resize(kept["logits"], stage.returned_logits)
    with step.where(stage.casts), step.where(stage.casts_again):
        for layer in step.each(stage.layers):
            step.drop(copies[layer])
    return copies, kept


def _kept(stage: ReplicatedStage, layer: Layer) -> FloatArray:
    """Return what a layer keeps, without what the lowest need not behind a frozen embedding."""
    return without(layer.bytes.kept, only(layer.is_lowest, stage.unsaved))


def replicated_stage(asked: Question) -> ReplicatedStage:
    """Return the quantities of the program."""
    layouts, job, held, active = asked.layouts, asked.job, asked.held, asked.active
    size, states = job.precision.compute_bytes, job.states
    learns_beside = any(companion.trainable for companion in job.companions)
    keeps = np.bool_(learns_beside) | (layouts.micro_batches(job.global_batch_size) > 1)
    casts = casts_weights(layouts, job)
    has_buckets = in_zero_stages(layouts.zero_stage, job.profile.weights.gradient_bucket_stages)
    has_buckets = has_buckets & (layouts.data_parallel > 1)
    head = np.ceil(held.head_matrix_elements)
    gradients = np.ceil(held.root_gradients)
    head_gradient = states.gradient * head
    of_forward = forward_logits(asked)
    is_chunked, of_logits = bool(job.profile.loss.sequence_chunks), logits_gradient(asked, size * head)
    is_tied = job.model.tied_head and job.profile.weights.tied_gradients_meet
    return ReplicatedStage(
        rest=at_rest(asked, keeps_gradients=keeps),
        layers=stage_layers(asked, gradient_bytes=np.where(keeps, 0.0, float(states.gradient))),
        keeps_gradients=mask_of(keeps),
        buckets=np.where(has_buckets, np.ceil(states.gradient * held.stage_elements), 0.0),
        casts=mask_of(casts),
        casts_again=mask_of((layouts.recompute == FULL) | layouts.activation_offload),
        head_copy=NO_BYTES if compares(job) else size * head,
        message=np.ceil(active.checkpoint),
        forward_end=np.ceil(
            (np.where(casts, sums_at_end(job, autocast=True), sums_at_end(job, autocast=False)) - 1) * active.checkpoint
        ),
        stashed=some(np.ceil(active.waiting)),
        unsaved=some(np.ceil(active.first_adapter_savings)),
        head_kept=np.ceil(active.head),
        unsaved_head_input=unsaved_head_input(asked),
        returned_head=some(np.ceil(_returned_head(asked))),
        forward_logits=of_forward,
        returned_logits=np.maximum(of_forward, returned_logits(asked)),
        logits=differentiated_logits(asked) if is_chunked else np.ceil(active.logits),
        logits_gradient=of_logits,
        fresh_head=NO_BYTES if compares(job) else size * head * (casts if is_chunked else 1.0),
        head_gradient=head_gradient,
        later_logits_gradient=later_logits_gradient(asked, of_logits),
        later_head_gradient=head_gradient if is_chunked else NO_BYTES,
        embedding_gradient=gradients - (0.0 if is_tied else head_gradient),
        is_tied=is_tied,
        kept_logits=np.ceil(active.kept_logits),
        companions=beside_policy(asked),
    )


def _returned_head(asked: Question) -> FloatArray:
    """Return what of the head comes back from the host as it is differentiated, and its input's gradient.

    That is its weight, in the width that it is multiplied in, and the input of one that learns.
    """
    held, layouts, job = asked.held, asked.layouts, asked.job
    if not any_of(layouts.activation_offload):
        return NO_BYTES
    size, learns = job.precision.compute_bytes, job.head.learning is None
    stream = layouts.local_tokens(job.sequence_length) * job.model.hidden_size * size
    if learns:
        comes_back = returns_weights(layouts, job)
        amount = size * held.head_matrix_elements + 2.0 * stream
    else:
        comes_back = layouts.activation_offload & np.bool_(job.profile.can.activation_offload == SYNCHRONOUS)
        amount = held.head_frozen + stream
    return np.where(comes_back & ~layouts.fused_cross_entropy, amount, 0.0)
