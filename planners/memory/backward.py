"""The events of the backward pass, from the head down to the embedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, FloatArray
from plimsoll.planners.memory.descent import gathered_ahead, layer_gradients, left_to_do
from plimsoll.planners.memory.expert_units import expert_unit_items
from plimsoll.planners.memory.head_backward import FP8, head_casts, head_gradient, head_reduction
from plimsoll.planners.memory.items import BELOW_ALL_LAYERS, NOTHING, Items
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.step_context import StepContext, items_at
from plimsoll.planners.memory.tied_table import tied_table_items
from plimsoll.planners.memory.unlike_layers import UnlikeKind, where_alike

# Residual, its gradient, the last matrix's output and the gradient that goes to its adapter (peft, `LoraLayer`).
RECOMPUTED_BESIDE_UNPACKED = 4


def backward_items(step: StepContext, kinds: Sequence[UnlikeKind] = ()) -> Iterator[Items]:
    """Yield the layers that can be the worst of the backward pass, along an axis before the stages.

    Downwards the gradients grow and the kept activations shrink, both linearly,
    so the worst is at an end: the top two layers, the edge of the recomputed
    ones, or the bottom; where FSDP2 gathers layers also the lowest but one,
    the last that a layer is gathered ahead of. Where none or all are recomputed the
    edge is an end. Layers of several `kinds` are each at their own ends.
    """
    top: FloatArray = step.rows.layers.astype(np.float64) - 1.0
    ends = [top, np.clip(top - 1.0, 0.0, top), np.minimum(top, 0.0)]
    if step.own_units or (step.any_gathered and step.job.profile.weights.gather_copies):
        ends.append(np.minimum(top, 1.0))
    for items in _differentiated(step, np.stack(ends), two_upper=np.stack(ends[:2])):
        yield where_alike(items, kinds)
    for kind in kinds:
        for items in _differentiated(kind.step, kind.layers, two_upper=kind.layers):
            yield kind.where_apart(items)
        yield kind.where_apart(_layer_reduced(kind.step, kind.layers))
    if step.own_units:
        yield head_reduction(step)
    if step.job.precision.compute_format == FP8:
        yield from head_casts(step)
    if step.zero is not None:
        yield head_gradient(step, step.zero)
    splits_vocabulary = step.layouts.tensor_parallel > 1
    if step.job.profile.weights.whole_embedding_gradient and step.any_gathered and splits_vocabulary.any():
        yield _embedding_gradient(step)
    if step.job.profile.kernels.dummy_weight_gradients:
        yield _added_embedding_gradient(step)
    yield from tied_table_items(step)
    yield _root_reduction(step)


def _differentiated(step: StepContext, layers: FloatArray, *, two_upper: FloatArray) -> Iterator[Items]:
    """Yield the events of these layers; the upper ones have most that is live as experts are copied out."""
    own = _own_of_layer(step)
    yield _layer_items(step, layers, *own)
    if step.neighbours is None and (step.layouts.full_layers != ALL_LAYERS).any():
        edge, top = step.active.recomputed_layers, step.rows.layers - 1.0
        yield _layer_items(step, np.clip(np.stack([edge, edge - 1.0]), 0.0, top), *own)
    if step.expert_units.any():
        yield from expert_unit_items(step, layers, two_upper=two_upper)


def _own_of_layer(step: StepContext) -> tuple[FloatArray, FloatArray]:
    """Return the activations and the fresh gradients of the layer that is differentiated, at its worst event.

    At its last matrix all its tensors are live, gradients that meet and one matrix's
    gradient; at the first matrices of a feed-forward whose kernels work in place one half less; at its norms less of
    them and, where a unit's gradients are reduced together, those of all matrices behind: the worse for wide layers and
    few tokens. A mixture has two events more: its outputs' gradient is scattered before any matrix has one, and at the
    experts' first product theirs all have.
    """
    held, active, layer, job = step.held, step.active, step.active.backward, step.job
    size = job.precision.compute_bytes
    if job.profile.is_textbook:
        return layer.working_set + layer.transient + held.dequantized, NOTHING
    activations = _at_last_matmul(step)
    fresh = size * np.maximum(held.last_matrix_elements, held.last_expert_elements)
    if job.model.experts_per_token and are_grouped(job.profile.kernels):
        # Their kernels add weight gradients up where they accumulate; nothing is gathered.
        return np.maximum(activations, np.maximum(layer.at_combine, layer.at_recomputed_combine)), NOTHING
    if not step.any_gathered:
        return activations, fresh
    events = [(layer.at_input_norm, size * held.layer_elements)]
    behind = np.where(step.expert_units, 0.0, size * held.feed_forward_elements)
    events.append((np.where(step.expert_units, 0.0, layer.at_second_norm), behind))
    behind_attention = size * held.behind_attention_elements
    events.append((np.where(step.expert_units, 0.0, layer.attention_gradients), behind_attention))
    if job.precision.compute_format == FP8:
        # A matrix is cast before it has a gradient of its own: the layer's last one, and the first of its feed-forward.
        cast = job.profile.kernels.fp8_cast_bytes * held.last_matrix_elements
        events.append((layer.at_last_matmul + cast, NOTHING))
        # Its input, for its own gradient; the input's gradient is done.
        widest = (layer.last_matmul_gradients - active.p2p_message) * (job.profile.kernels.fp8_cast_bytes / size)
        events.append((layer.working_set + layer.last_matmul_gradients + widest, NOTHING))
        events.append((layer.at_second_norm + cast, np.maximum(behind - size * held.last_matrix_elements, 0.0)))
    if job.profile.kernels.works_in_place:
        events.append((np.where(step.expert_units, 0.0, layer.at_first_matmuls), behind))
    if job.model.experts_per_token and job.method == "full":
        events += [
            (np.maximum(layer.at_combine, layer.at_recomputed_combine), NOTHING),
            (layer.at_expert_matmuls, size * held.expert_elements),
        ]
    for of_activations, of_gradients in events:
        is_worse = step.is_gathered & (of_activations + of_gradients > activations + fresh)
        activations, fresh = np.where(is_worse, of_activations, activations), np.where(is_worse, of_gradients, fresh)
    return activations, fresh


def _at_last_matmul(step: StepContext) -> FloatArray:
    """Return what is alive of a layer at its last matrix.

    Gradients of its widest tensor meet after that matrix has been multiplied by. One that has to be unpacked first
    is there before they meet: as its input's gradient is made, or, where the layer is recomputed, at the end of its
    second run, which holds the residual and its gradient, the output, and for an adapter the scaled gradient.
    """
    held, active, layer, job = step.held, step.active, step.active.backward, step.job
    if job.method != "qlora":
        return np.maximum(layer.at_last_matmul + held.dequantized, _at_adapter_cast(step))
    recomputed = np.where(active.recomputed_layers > 0, RECOMPUTED_BESIDE_UNPACKED * active.p2p_message, 0.0)
    unpacked = held.dequantized + np.maximum(layer.last_matmul_gradients, recomputed)
    result: FloatArray = layer.working_set + np.maximum(layer.transient, unpacked)
    return result


def _at_adapter_cast(step: StepContext) -> FloatArray:
    """Return what is alive as the last adapter's input is cast: in the layer's only run, or in its second one.

    The first one is in the forward pass, which holds the embedding's output and the layer's input besides; what it
    saves has mostly left for the host where activations wait there.
    """
    active, kernels = step.active, step.job.profile.kernels
    if not active.backward.at_adapter_cast.any():
        return NOTHING
    at_cast = active.backward.at_adapter_cast
    first_run = at_cast + (1.0 + kernels.norm_keeps_fp32) * active.p2p_message
    first_run = np.where(step.layouts.activation_offload, 0.0, first_run)
    result: FloatArray = np.where(active.recomputed_layers > 0, at_cast, first_run)
    return result


def _layer_items(step: StepContext, layer: FloatArray, own_activations: FloatArray, fresh: FloatArray) -> Items:
    """Return the events at which layers (0 the lowest of the stage) are differentiated."""
    held, active, job = step.held, step.active, step.job
    size, traffic = job.precision.compute_bytes, job.profile.weights
    layers_above = step.rows.layers - 1.0 - layer
    gathered = reduced = copies = NOTHING
    if step.any_gathered:
        lasting = np.where(step.stays_gathered, step.rows.layers, layer + 1.0)
        ahead = gathered_ahead(step, layer)
        gathered = np.where(step.gathered_by_layer, step.open_root + step.one_layer + ahead, 0.0) + np.where(
            step.gathered_once, step.open_root + step.one_layer * lasting, 0.0
        )
        # Of experts in a unit of their own the layer above was reduced last, and its experts before it.
        before = np.where(layers_above > 0, step.reduced_above, held.head_padded if step.own_units else 0.0)
        reduced = np.where(step.is_reduced, traffic.reduce_bytes * before, 0.0)
    if step.any_copies:
        one_at_a_time = (step.layouts.recompute == FULL) | step.layouts.activation_offload
        copied_layers = np.where(one_at_a_time, 1.0, layer + 1.0)
        copies = np.where(step.autocast_copies, size * held.layer_elements * copied_layers, 0.0)
    recomputed, kept = left_to_do(step, layer)
    alive = active.checkpoint * recomputed + active.layer * kept + own_activations + _held_inputs(step, layers_above)
    alive = alive + active.backward.not_recomputed - active.first_adapter_savings + _received_beside(step, layers_above)
    alive = alive - _kept_by_norm(step, layer)
    others, accumulated = step.beside(step.finished_elements(layers_above))
    gradients = layer_gradients(step, layers_above, fresh)
    if step.zero is not None:
        gradients = step.zero.gradients_in_layer(gradients, fresh, step.finished_elements(layers_above))
    return items_at(
        step,
        "backward",
        "layer",
        parameters=held.parameters + copies,
        gradients=gradients,
        activations=alive + others + step.constant_activations,
        communication=gathered + reduced + step.layer_buckets(layers_above) + accumulated,
        layer=layer,
    )


def _kept_by_norm(step: StepContext, layer: FloatArray) -> FloatArray:
    """Return the input of a recomputed layer at work, where its first norm keeps that and no copy in fp32.

    The textbook's sum counts it twice.
    """
    kernels = step.job.profile.kernels
    if kernels.norm_keeps_fp32 or step.job.profile.is_textbook:
        return NOTHING
    at_work = left_to_do(step, layer)[0] - left_to_do(step, layer - 1.0)[0]
    result: FloatArray = step.active.checkpoint * at_work
    return result


def _received_beside(step: StepContext, layers_above: FloatArray) -> FloatArray:
    """Return the gradient that a stage received, where it is not in a buffer, nor the top layer's residual's own."""
    received = step.received_gradient
    if received is NOTHING:
        return NOTHING
    in_buffer = received if step.job.profile.kernels.pipelines_keep_messages else NOTHING
    return np.where(layers_above > 0, received, 0.0) - in_buffer


def _layer_reduced(step: StepContext, layer: FloatArray) -> Items:
    """Return the event at which a layer's own gradients are copied into the buffer that they are reduced in.

    Its weights have been let go of, and the layer below is gathered ahead. The layer below being differentiated is
    worse, unless it is much smaller.
    """
    held, active, job = step.held, step.active, step.job
    layers_above = step.rows.layers - 1.0 - layer
    ahead = gathered_ahead(step, layer)
    own = np.where(step.expert_units, held.layer_elements - held.expert_elements, held.layer_elements)
    padded = np.where(step.expert_units, held.layer_padded - held.expert_padded, held.layer_padded)
    recomputed, kept = left_to_do(step, layer)
    below = active.checkpoint * np.maximum(recomputed - 1.0, 0.0) + active.layer * kept
    return items_at(
        step,
        "backward",
        "layer reduced",
        gradients=layer_gradients(step, layers_above, job.precision.compute_bytes * own),
        activations=below + active.p2p_message + step.others_activations + step.constant_activations,
        communication=step.open_root
        + ahead
        + np.where(step.is_reduced, job.profile.weights.reduce_bytes * padded, 0.0)
        + step.buckets
        + step.accumulated,
        layer=layer,
    )


def _held_inputs(step: StepContext, finished: FloatArray) -> FloatArray:
    """Return what hooks of finished layers still hold: each one's recomputed input and that input's gradient."""
    job, active = step.job, step.active
    if job.method == "full" or not job.profile.weights.frozen_layers_hold_inputs:
        return NOTHING
    recomputed = np.minimum(finished, active.recomputed_layers)
    result: FloatArray = np.where(step.gathered_by_layer, 2.0 * active.checkpoint * recomputed, 0.0)
    return result


def _embedding_gradient(step: StepContext) -> Items:
    """Return the event at which DTensor cuts the embedding's gradient over the tensor-parallel ranks.

    Looking tokens up in a vocabulary split by rows has no backward rule that keeps it
    split: each rank makes a gradient as large as the whole matrix, and a
    reduce-scatter makes its part of it (torch, distributed/tensor/_ops/_embedding_ops.py,
    `embedding_dense_backward_strategy`).
    """
    held, size, traffic = step.held, step.job.precision.compute_bytes, step.job.profile.weights
    embedding = size * (held.root_elements - held.head_elements) * step.rows.has_embedding
    whole = embedding * step.layouts.tensor_parallel
    head = 0.0 if step.own_units else size * held.head_matrix_elements
    others = held.gradients - (held.root_gradients - held.head_gradients if step.own_units else held.root_gradients)
    sharded = np.where(step.keeps_gradients, held.gradients, np.where(step.stays_gathered, 0.0, others))
    gathered = np.where(step.gathered_by_layer, step.open_root + step.last_unit, 0.0) + np.where(
        step.gathered_once, step.open_root + np.where(step.stays_gathered, step.whole_layers, 0.0), 0.0
    )
    is_whole = step.is_gathered & (step.layouts.tensor_parallel > 1) & step.rows.has_embedding
    return items_at(
        step,
        "backward",
        "embedding gradient cut",
        gradients=np.ceil(sharded + np.where(is_whole, head + whole, 0.0)),
        activations=step.others_activations + step.constant_activations,
        communication=gathered
        + np.where(is_whole, embedding, 0.0)
        + np.where(step.is_reduced, traffic.reduce_bytes * held.layer_padded, 0.0)
        + step.buckets
        + step.accumulated,
        layer=BELOW_ALL_LAYERS,
    )


def _added_embedding_gradient(step: StepContext) -> Items:
    """Return the event at which the embedding's gradient is whole and not yet added to the accumulated one.

    Kernels that add a matrix's gradient up where it accumulates are not the embedding's (Megatron-Core,
    distributed/distributed_data_parallel.py, `_make_backward_post_hook`).
    """
    held, active = step.held, step.active
    embedding = held.root_elements - held.head_elements
    has_embedding = step.rows.has_embedding & ~step.is_gathered
    fresh = np.where(has_embedding, step.job.precision.compute_bytes * embedding, 0.0)
    beside = np.where(has_embedding, active.p2p_message + step.received_gradient, 0.0)
    return items_at(
        step,
        "backward",
        "embedding gradient added",
        gradients=np.ceil(held.gradients + fresh),
        activations=beside + step.others_activations + step.constant_activations,
        communication=step.buckets + step.accumulated,
        layer=BELOW_ALL_LAYERS,
    )


def _root_reduction(step: StepContext) -> Items:
    """Return the end of the backward pass, when FSDP reduces the last unit: embedding, norm and head, or the first."""
    held, job = step.held, step.job
    reduced = NOTHING
    gradients = held.gradients
    if step.any_gathered:
        whole, padded, sent = step.root, held.root_padded, held.root_gradients_sent
        if step.own_units:
            whole, padded = step.last_unit, held.root_padded - held.head_padded
            sent = held.root_gradients_sent - held.head_gradients_sent
        # The shard is made once the whole gradients have been copied and let go of: the larger of the two counts.
        shard = held.root_gradients - held.head_gradients if step.own_units else held.root_gradients
        gradients = gradients - np.where(step.is_reduced, np.minimum(shard, whole), 0.0) + sent
        reduced = np.where(step.is_reduced, whole + job.profile.weights.reduce_bytes * padded, 0.0)
        if step.stays_gathered.any():
            first, first_gradients = _first_reduced(step)
            reduced = reduced + np.where(step.stays_gathered, first, 0.0)
            gradients = np.where(step.stays_gathered, first_gradients, gradients)
    if step.zero is not None:
        gradients = gradients + step.zero.embedding + np.where(step.zero.divides_gradients, step.zero.kept, 0.0)
    return items_at(
        step,
        "root gradient reduction",
        gradients=np.ceil(gradients),
        # A pipeline reduces when no micro-batch waits any more.
        activations=np.where(step.stays_gathered, 0.0, step.others_activations) + step.p2p_buffers,
        communication=reduced + step.end_buckets + step.accumulated,
    )


def _first_reduced(step: StepContext) -> tuple[FloatArray, FloatArray]:
    """Return gathered weights, buffer and shard as a pipeline's stage reduces its first unit after the last pass.

    All others are gathered still, and none of the summed gradients has been let go of.
    """
    held, traffic, rows = step.held, step.job.profile.weights, step.rows
    size = step.job.precision.compute_bytes
    embedding = held.root_elements - held.head_elements
    if not step.own_units:
        embedding = held.root_elements
    padded = held.root_padded - held.head_padded if step.own_units else held.root_padded
    shard = held.root_gradients - held.head_gradients if step.own_units else held.root_gradients
    first = np.where(rows.has_embedding, embedding, held.layer_elements)
    buffer = traffic.reduce_bytes * np.where(rows.has_embedding, padded, held.layer_padded)
    gathered = step.root + step.whole_layers - size * first
    return gathered + buffer, np.where(rows.has_embedding, shard, held.layer_gradients)
