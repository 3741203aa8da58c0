"""The moments of the forward pass and of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from plimsoll.planners.jobs.job import GPIPE
from plimsoll.planners.layouts.candidates import SELECTIVE, FloatArray
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.kinds_apart import KindApart, where_alike
from plimsoll.planners.memory.messages import keeps_first_input
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.moment import Moment, items_at


def forward_items(moment: Moment, kinds: Sequence[KindApart] = ()) -> Iterator[Items]:
    """Yield what is held as the first and the last layer are gathered, at the loss, and as the backward pass begins.

    Of layers of several `kinds` the last one is of the first.
    """
    traffic = moment.job.profile.weights
    if moment.any_gathered and traffic.gather_copies:
        yield where_alike(_last_layer_gathered(moment), kinds)
        for kind in kinds[:1]:
            yield kind.where_apart(_last_layer_gathered(kind.of_highest))
        if not moment.own_units:
            yield _first_layer_gathered(moment)
        if not traffic.vocabulary_units and moment.job.profile.loss.inside_model:
            yield _root_gathered_again(moment)
    if moment.job.model.experts_per_token and are_grouped(moment.job.profile.kernels):
        yield _tokens_returned(moment)
    yield from _loss(moment)


def _last_layer_gathered(moment: Moment) -> Items:
    """Return the last layer's gather: its buffer, its weights and the buffer of the layer before.

    FSDP2 holds on to the layer before's buffer so that its copying overlaps with the next
    gather, and lets go of it as the function returns that copies the next one out (torch,
    distributed/fsdp/_fully_shard/_fsdp_param_group.py, `wait_for_unshard`).
    """
    held, active = moment.held, moment.active
    buffers = moment.layer_buffer * np.minimum(moment.rows.layers, 1) + moment.ahead_buffer * (moment.rows.layers > 1)
    root = NOTHING if moment.own_units else moment.root
    # Experts in a unit of their own are copied out within their layer, which the layer before's buffer does not see.
    own = np.where(moment.expert_units, moment.layer_buffer, buffers)
    gathered = np.where(moment.gathered_by_layer, root + moment.one_layer + buffers, 0.0) + np.where(
        moment.gathered_once, moment.open_root + moment.whole_layers + own, 0.0
    )
    last = np.where(active.recomputed_layers >= moment.rows.layers, active.checkpoint, active.layer)
    # GPipe has no gradients before its last forward pass is done.
    accumulated = NOTHING if moment.job.pipeline_schedule == GPIPE else moment.accumulated
    # Before its experts a layer has all that it keeps but their tensors, and the residual.
    within = np.where(last == active.checkpoint, active.checkpoint, active.experts_reduced - active.message)
    begun = np.where(moment.expert_units & moment.gathered_once, within, active.checkpoint)
    before = np.maximum(active.stage - last, 0.0) + begun + active.waiting
    return items_at(
        moment,
        "forward and loss",
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=before + _held_embedding(moment) + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=gathered + moment.buckets + accumulated,
    )


def _first_layer_gathered(moment: Moment) -> Items:
    """Return the first layer's gather beside the root's buffer, which stays until that layer is copied out.

    Only the embedding's output is there. The worse for a large vocabulary and few tokens (torch, as
    `_last_layer_gathered` has it).
    """
    held = moment.held
    gathered = np.where(moment.is_gathered, 2.0 * moment.root + moment.one_layer + moment.layer_buffer, 0.0)
    return items_at(
        moment,
        "forward and loss",
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=moment.active.message + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=gathered + moment.buckets + moment.accumulated,
    )


def _tokens_returned(moment: Moment) -> Items:
    """Return the moment at which the last layer's tokens come back from Megatron-Core's experts.

    A layer that is recomputed keeps nothing of itself then, and holds more in its second run.
    """
    held, active = moment.held, moment.active
    beside = np.where(active.recomputed_layers >= moment.rows.layers, 0.0, active.returned - active.message)
    return items_at(
        moment,
        "forward and loss",
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=active.stage + beside + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=moment.buckets + moment.accumulated,
    )


def _held_embedding(moment: Moment) -> FloatArray:
    """Return the embedding's output, which transformers' model holds until its last layer is through.

    Nothing where a layer keeps it: its input, if it is recomputed, and a LayerNorm's that learns. Source: transformers
    5.23, models/llama/modeling_llama.py, `LlamaModel.forward` (`inputs_embeds`).
    """
    job, active = moment.job, moment.active
    if not job.profile.kernels.transformers_modules or (job.method == "full" and keeps_first_input(job)):
        return NOTHING
    is_kept = (active.recomputed_layers > 0) | (moment.layouts.recompute == SELECTIVE)
    return np.where(moment.rows.has_embedding & ~is_kept, active.message, 0.0)


def _root_gathered_again(moment: Moment) -> Items:
    """Return the beginning of the backward pass, which gathers the root that the end of the forward pass let go of.

    Its buffer and its weights stand beside what the loss keeps: the log-softmax in
    fp32, or the gradients that a fused loss has worked out already, which then needs its input no more.
    """
    held, active = moment.held, moment.active
    let_go = np.where(moment.layouts.fused_cross_entropy & moment.rows.has_head, active.message, 0.0)
    gathered = np.where(moment.gathered_by_layer, 2.0 * moment.root, 0.0) + np.where(
        moment.gathered_once, moment.root + moment.whole_layers, 0.0
    )
    return items_at(
        moment,
        "forward and loss",
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=active.stage + moment.others_activations + active.head - let_go + moment.constant_activations,
        logits=active.kept_logits,
        communication=gathered + moment.buckets + moment.accumulated,
    )


def _loss(moment: Moment) -> Iterator[Items]:
    """Yield the computing of the loss where the head is; where autocast copies weights, the forward pass's end too.

    The copies of recomputed layers are let go of with the forward pass, when the loss
    has yet to be differentiated.
    """
    held, active, job = moment.held, moment.active, moment.job
    size = job.precision.compute_bytes
    gathered = _gathered_at_loss(moment) if moment.any_gathered else NOTHING
    if not moment.any_copies:
        yield _loss_items(moment, NOTHING, active.logits, gathered)
        return
    # Only what learns is kept in fp32 and so copied; a frozen base already lies in the compute precision.
    layers = held.stage_elements - held.root_elements
    copies = size * (layers + held.head_matrix_elements)
    let_go = size * layers * active.recomputed_layers / np.maximum(moment.rows.layers, 1)
    # What autograd keeps of them is on the host then, where activations are.
    let_go = np.where(moment.layouts.activation_offload, copies, let_go)
    yield _loss_items(moment, np.where(moment.autocast_copies, copies - let_go, 0.0), active.logits, gathered)
    less = active.logits * (1.0 - job.profile.loss.forward_logits_bytes / job.profile.loss.logits_bytes)
    yield _loss_items(moment, np.where(moment.autocast_copies, copies, 0.0), active.logits - less, gathered)


def _gathered_at_loss(moment: Moment) -> FloatArray:
    """Return the gathered weights at the loss: the head, or the root with the last layer's buffer, or all.

    Stacks with units for the vocabulary compute the loss outside the model, when the last buffer has been let go of.
    """
    if moment.own_units:
        beside: FloatArray = moment.job.precision.compute_bytes * moment.held.head_elements
    elif moment.job.profile.weights.vocabulary_units:
        beside = moment.root
    else:
        beside = moment.root + moment.layer_buffer
    inside = moment.job.profile.loss.inside_model
    gathered: FloatArray = np.where(moment.gathered_by_layer & inside, beside, 0.0) + np.where(
        moment.gathered_once, moment.root + moment.whole_layers, 0.0
    )
    return gathered


def _loss_items(moment: Moment, copies: FloatArray, logits: FloatArray, gathered: FloatArray) -> Items:
    held, active = moment.held, moment.active
    others, accumulated = moment.beside(0.0)
    return items_at(
        moment,
        "forward and loss",
        parameters=held.parameters + copies,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=active.stage + others + active.head + moment.constant_activations,
        logits=logits,
        communication=gathered + moment.buckets + accumulated,
    )
