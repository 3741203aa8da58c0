"""The events of the forward pass and of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from plimsoll.planners.ground.terms import GPIPE
from plimsoll.planners.layouts.candidates import SELECTIVE, FloatArray
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.p2p_buffers import keeps_first_input
from plimsoll.planners.memory.step_context import StepContext, items_at
from plimsoll.planners.memory.unlike_layers import UnlikeKind, where_alike


def forward_items(step: StepContext, kinds: Sequence[UnlikeKind] = ()) -> Iterator[Items]:
    """Yield what is held as the first and the last layer are gathered, at the loss, and as the backward pass begins.

    Of layers of several `kinds` the last one is of the first.
    """
    traffic = step.job.profile.weights
    if step.any_gathered and traffic.gather_copies:
        yield where_alike(_last_layer_gathered(step), kinds)
        for kind in kinds[:1]:
            yield kind.where_apart(_last_layer_gathered(kind.of_highest))
        if not step.own_units:
            yield _first_layer_gathered(step)
        if not traffic.vocabulary_units and step.job.profile.loss.inside_model:
            yield _root_gathered_again(step)
    if step.job.model.experts_per_token and are_grouped(step.job.profile.kernels):
        yield _tokens_returned(step)
    yield from _loss(step)


def _last_layer_gathered(step: StepContext) -> Items:
    """Return the last layer's gather: its buffer, its weights and the buffer of the layer before.

    FSDP2 holds on to the layer before's buffer so that its copying overlaps with the next
    gather, and lets go of it as the function returns that copies the next one out (torch,
    distributed/fsdp/_fully_shard/_fsdp_param_group.py, `wait_for_unshard`).
    """
    active = step.active
    buffers = step.layer_buffer * np.minimum(step.rows.layers, 1) + step.ahead_buffer * (step.rows.layers > 1)
    root = NOTHING if step.own_units else step.root
    # Experts in a unit of their own are copied out within their layer, which the layer before's buffer does not see.
    own = np.where(step.expert_units, step.layer_buffer, buffers)
    gathered = np.where(step.gathered_by_layer, root + step.one_layer + buffers, 0.0) + np.where(
        step.gathered_once, step.open_root + step.whole_layers + own, 0.0
    )
    last = np.where(active.recomputed_layers >= step.rows.layers, active.checkpoint, active.layer)
    # GPipe has no gradients before its last forward pass is done.
    accumulated = NOTHING if step.job.pipeline_schedule == GPIPE else step.accumulated
    # Before its experts a layer has all that it keeps but their tensors, and the residual.
    within = np.where(
        last == active.checkpoint, active.checkpoint, active.backward.at_expert_reduction - active.p2p_message
    )
    begun = np.where(step.expert_units & step.gathered_once, within, active.checkpoint)
    before = np.maximum(active.stage - last, 0.0) + begun + active.waiting
    return items_at(
        step,
        "forward and loss",
        "last layer gathered",
        gradients=step.kept_gradients,
        activations=before + _held_embedding(step) + step.others_activations + step.constant_activations,
        communication=gathered + step.buckets + accumulated,
    )


def _first_layer_gathered(step: StepContext) -> Items:
    """Return the first layer's gather beside the root's buffer, which stays until that layer is copied out.

    Only the embedding's output is live. The worse for a large vocabulary and few tokens (torch, as
    `_last_layer_gathered` has it).
    """
    gathered = np.where(step.is_gathered, 2.0 * step.root + step.one_layer + step.layer_buffer, 0.0)
    return items_at(
        step,
        "forward and loss",
        "first layer gathered",
        gradients=step.kept_gradients,
        activations=step.active.p2p_message + step.others_activations + step.constant_activations,
        communication=gathered + step.buckets + step.accumulated,
    )


def _tokens_returned(step: StepContext) -> Items:
    """Return the event at which the last layer's tokens come back from Megatron-Core's experts.

    A layer that is recomputed keeps nothing of itself then, and holds more in its second run.
    """
    active = step.active
    beside = np.where(
        active.recomputed_layers >= step.rows.layers, 0.0, active.backward.beside_combine - active.p2p_message
    )
    return items_at(
        step,
        "forward and loss",
        "tokens returned",
        gradients=step.kept_gradients,
        activations=active.stage + beside + step.others_activations + step.constant_activations,
        communication=step.buckets + step.accumulated,
    )


def _held_embedding(step: StepContext) -> FloatArray:
    """Return the embedding's output, which transformers' model holds until its last layer is through.

    Nothing where a layer keeps it: its input, if it is recomputed, and a LayerNorm's that learns. Source: transformers
    5.23, models/llama/modeling_llama.py, `LlamaModel.forward` (`inputs_embeds`).
    """
    job, active = step.job, step.active
    if not job.profile.kernels.transformers_modules or (job.method == "full" and keeps_first_input(job)):
        return NOTHING
    is_saved = (active.recomputed_layers > 0) | (step.layouts.recompute == SELECTIVE)
    return np.where(step.rows.has_embedding & ~is_saved, active.p2p_message, 0.0)


def _root_gathered_again(step: StepContext) -> Items:
    """Return the beginning of the backward pass, which gathers the root that the end of the forward pass let go of.

    Its buffer and its weights stand beside what the loss keeps: the log-softmax in
    fp32, or the gradients that a fused loss has worked out already, which then needs its input no more.
    """
    active = step.active
    let_go = np.where(step.layouts.fused_cross_entropy & step.rows.has_head, active.p2p_message, 0.0)
    gathered = np.where(step.gathered_by_layer, 2.0 * step.root, 0.0) + np.where(
        step.gathered_once, step.root + step.whole_layers, 0.0
    )
    return items_at(
        step,
        "forward and loss",
        "root gathered again",
        gradients=step.kept_gradients,
        activations=active.stage + step.others_activations + active.head - let_go + step.constant_activations,
        logits=active.kept_logits,
        communication=gathered + step.buckets + step.accumulated,
    )


def _loss(step: StepContext) -> Iterator[Items]:
    """Yield the computing of the loss where the head is; where autocast copies weights, the forward pass's end too.

    The copies of recomputed layers are let go of with the forward pass, when the loss
    has yet to be differentiated.
    """
    held, active, job = step.held, step.active, step.job
    size = job.precision.compute_bytes
    gathered = _gathered_at_loss(step) if step.any_gathered else NOTHING
    if not step.any_copies:
        yield _loss_items(step, "loss", NOTHING, active.logits, gathered)
        return
    # Only what learns is kept in fp32 and so copied; a frozen base already lies in the compute precision.
    layers = held.stage_elements - held.root_elements
    copies = size * (layers + held.head_matrix_elements)
    let_go = size * layers * active.recomputed_layers / np.maximum(step.rows.layers, 1)
    # What autograd keeps of them is on the host then, where activations are.
    let_go = np.where(step.layouts.activation_offload, copies, let_go)
    yield _loss_items(step, "loss", np.where(step.autocast_copies, copies - let_go, 0.0), active.logits, gathered)
    less = active.logits * (1.0 - job.profile.loss.forward_logits_bytes / job.profile.loss.logits_bytes)
    copied = np.where(step.autocast_copies, copies, 0.0)
    yield _loss_items(step, "forward pass ends", copied, active.logits - less, gathered)


def _gathered_at_loss(step: StepContext) -> FloatArray:
    """Return the gathered weights at the loss: the head, or the root with the last layer's buffer, or all.

    Stacks with units for the vocabulary compute the loss outside the model, when the last buffer has been let go of.
    """
    if step.own_units:
        beside: FloatArray = step.job.precision.compute_bytes * step.held.head_elements
    elif step.job.profile.weights.vocabulary_units:
        beside = step.root
    else:
        beside = step.root + step.layer_buffer
    inside = step.job.profile.loss.inside_model
    gathered: FloatArray = np.where(step.gathered_by_layer & inside, beside, 0.0) + np.where(
        step.gathered_once, step.root + step.whole_layers, 0.0
    )
    return gathered


def _loss_items(step: StepContext, event: str, copies: FloatArray, logits: FloatArray, gathered: FloatArray) -> Items:
    held, active = step.held, step.active
    others, accumulated = step.beside(0.0)
    return items_at(
        step,
        "forward and loss",
        event,
        parameters=held.parameters + copies,
        gradients=step.kept_gradients,
        activations=active.stage + others + active.head + step.constant_activations,
        logits=logits,
        communication=gathered + step.buckets + accumulated,
    )
