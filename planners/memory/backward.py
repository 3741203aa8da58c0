"""The moments of the backward pass, from the head down to the embedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, FloatArray
from plimsoll.planners.memory.descent import gathered_ahead, layer_gradients, left_to_do
from plimsoll.planners.memory.expert_units import expert_unit_items
from plimsoll.planners.memory.head_backward import FP8, head_casts, head_gradient, head_reduction
from plimsoll.planners.memory.items import BELOW_ALL_LAYERS, NOTHING, Items
from plimsoll.planners.memory.kinds_apart import KindApart, where_alike
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.moment import Moment, items_at
from plimsoll.planners.memory.tied_table import tied_table_items

# Residual, its gradient, the last matrix's output and the gradient that goes to its adapter (peft, `LoraLayer`).
RECOMPUTED_BESIDE_UNPACKED = 4


def backward_items(moment: Moment, kinds: Sequence[KindApart] = ()) -> Iterator[Items]:
    """Yield the layers that can be the worst of the backward pass, along an axis before the stages.

    Downwards the gradients grow and the kept activations shrink, both linearly,
    so the worst is at an end: the top two layers, the edge of the recomputed
    ones, or the bottom; where FSDP2 gathers layers also the lowest but one,
    the last that a layer is gathered ahead of. Where none or all are recomputed the
    edge is an end. Layers of several `kinds` are each at their own ends.
    """
    top: FloatArray = moment.rows.layers.astype(np.float64) - 1.0
    ends = [top, np.clip(top - 1.0, 0.0, top), np.minimum(top, 0.0)]
    if moment.own_units or (moment.any_gathered and moment.job.profile.weights.gather_copies):
        ends.append(np.minimum(top, 1.0))
    for items in _differentiated(moment, np.stack(ends), two_upper=np.stack(ends[:2])):
        yield where_alike(items, kinds)
    for kind in kinds:
        for items in _differentiated(kind.moment, kind.layers, two_upper=kind.layers):
            yield kind.where_apart(items)
        yield kind.where_apart(_layer_reduced(kind.moment, kind.layers))
    if moment.own_units:
        yield head_reduction(moment)
    if moment.job.precision.compute_format == FP8:
        yield from head_casts(moment)
    if moment.zero is not None:
        yield head_gradient(moment, moment.zero)
    splits_vocabulary = moment.layouts.tensor_parallel > 1
    if moment.job.profile.weights.whole_embedding_gradient and moment.any_gathered and splits_vocabulary.any():
        yield _embedding_gradient(moment)
    if moment.job.profile.kernels.dummy_weight_gradients:
        yield _added_embedding_gradient(moment)
    yield from tied_table_items(moment)
    yield _root_reduction(moment)


def _differentiated(moment: Moment, layers: FloatArray, *, two_upper: FloatArray) -> Iterator[Items]:
    """Yield the moments of these layers; the upper ones have most of what is there as experts are copied out."""
    own = _own_of_layer(moment)
    yield _layer_items(moment, layers, *own)
    if moment.neighbours is None and (moment.layouts.full_layers != ALL_LAYERS).any():
        edge, top = moment.active.recomputed_layers, moment.rows.layers - 1.0
        yield _layer_items(moment, np.clip(np.stack([edge, edge - 1.0]), 0.0, top), *own)
    if moment.expert_units.any():
        yield from expert_unit_items(moment, layers, two_upper=two_upper)


def _own_of_layer(moment: Moment) -> tuple[FloatArray, FloatArray]:
    """Return the activations and the fresh gradients of the layer that is differentiated, at its worst moment.

    At its last matrix all its tensors are there, gradients that meet and one matrix's
    gradient; at the first matrices of a feed-forward whose kernels work in place one half less; at its norms less of
    them and, where a unit's gradients are reduced together, those of all matrices behind: the worse for wide layers and
    few tokens. A mixture has two moments more: its outputs' gradient is scattered before any matrix has one, and at the
    experts' first product theirs all have.
    """
    held, active, job = moment.held, moment.active, moment.job
    size = job.precision.compute_bytes
    if not job.profile.kernels.backward_transients:
        return active.working_set + active.transient + held.dequantized, NOTHING
    activations = _at_last_matrix(moment)
    fresh = size * np.maximum(held.last_matrix_elements, held.last_expert_elements)
    if job.model.experts_per_token and are_grouped(job.profile.kernels):
        # Their kernels add weight gradients up where they accumulate; nothing is gathered.
        return np.maximum(activations, np.maximum(active.combine, active.tokens_back)), NOTHING
    if not moment.any_gathered:
        return activations, fresh
    moments = [(active.first_norm, size * held.layer_elements)]
    behind = np.where(moment.expert_units, 0.0, size * held.feed_forward_elements)
    moments.append((np.where(moment.expert_units, 0.0, active.second_norm), behind))
    behind_attention = size * held.behind_attention_elements
    moments.append((np.where(moment.expert_units, 0.0, active.attention_gradients), behind_attention))
    if job.precision.compute_format == FP8:
        # A matrix is cast before it has a gradient of its own: the layer's last one, and the first of its feed-forward.
        cast = job.profile.kernels.fp8_cast_bytes * held.last_matrix_elements
        moments.append((active.last_matrix + cast, NOTHING))
        # Its input, for its own gradient; the input's gradient is done.
        widest = (active.last_product - active.message) * (job.profile.kernels.fp8_cast_bytes / size)
        moments.append((active.working_set + active.last_product + widest, NOTHING))
        moments.append((active.second_norm + cast, np.maximum(behind - size * held.last_matrix_elements, 0.0)))
    if job.profile.kernels.works_in_place:
        moments.append((np.where(moment.expert_units, 0.0, active.first_products), behind))
    if job.model.experts_per_token and job.method == "full":
        moments += [
            (np.maximum(active.combine, active.tokens_back), NOTHING),
            (active.experts_product, size * held.expert_elements),
        ]
    for of_activations, of_gradients in moments:
        is_worse = moment.is_gathered & (of_activations + of_gradients > activations + fresh)
        activations, fresh = np.where(is_worse, of_activations, activations), np.where(is_worse, of_gradients, fresh)
    return activations, fresh


def _at_last_matrix(moment: Moment) -> FloatArray:
    """Return what is alive of a layer at its last matrix.

    Gradients of its widest tensor meet after that matrix has been multiplied by. One that has to be unpacked first
    is there before they meet: as its input's gradient is made, or, where the layer is recomputed, at the end of its
    second run, which holds the residual and its gradient, the output, and for an adapter the scaled gradient.
    """
    held, active, job = moment.held, moment.active, moment.job
    if job.method != "qlora":
        return active.last_matrix + held.dequantized
    recomputed = np.where(active.recomputed_layers > 0, RECOMPUTED_BESIDE_UNPACKED * active.message, 0.0)
    unpacked = held.dequantized + np.maximum(active.last_product, recomputed)
    result: FloatArray = active.working_set + np.maximum(active.transient, unpacked)
    return result


def _layer_items(moment: Moment, layer: FloatArray, own_activations: FloatArray, fresh: FloatArray) -> Items:
    """Return the moments at which layers (0 the lowest of the stage) are differentiated."""
    held, active, job = moment.held, moment.active, moment.job
    size, traffic = job.precision.compute_bytes, job.profile.weights
    layers_above = moment.rows.layers - 1.0 - layer
    gathered = reduced = copies = NOTHING
    if moment.any_gathered:
        lasting = np.where(moment.stays_gathered, moment.rows.layers, layer + 1.0)
        ahead = gathered_ahead(moment, layer)
        gathered = np.where(moment.gathered_by_layer, moment.open_root + moment.one_layer + ahead, 0.0) + np.where(
            moment.gathered_once, moment.open_root + moment.one_layer * lasting, 0.0
        )
        # Of experts in a unit of their own the layer above was reduced last, and its experts before it.
        before = np.where(layers_above > 0, moment.reduced_above, held.head_padded if moment.own_units else 0.0)
        reduced = np.where(moment.is_reduced, traffic.reduce_bytes * before, 0.0)
    if moment.any_copies:
        one_at_a_time = (moment.layouts.recompute == FULL) | moment.layouts.activation_offload
        copied_layers = np.where(one_at_a_time, 1.0, layer + 1.0)
        copies = np.where(moment.autocast_copies, size * held.layer_elements * copied_layers, 0.0)
    recomputed, kept = left_to_do(moment, layer)
    alive = active.checkpoint * recomputed + active.layer * kept + own_activations + _held_inputs(moment, layers_above)
    alive = alive + active.unused - active.unneeded + _received_beside(moment, layers_above)
    alive = alive - _kept_by_norm(moment, layer)
    others, accumulated = moment.beside(moment.finished_elements(layers_above))
    gradients = layer_gradients(moment, layers_above, fresh)
    if moment.zero is not None:
        gradients = moment.zero.gradients_in_layer(gradients, fresh, moment.finished_elements(layers_above))
    return items_at(
        moment,
        "backward",
        parameters=held.parameters + copies,
        gradients=gradients,
        activations=alive + others + moment.constant_activations,
        logits=NOTHING,
        communication=gathered + reduced + moment.layer_buckets(layers_above) + accumulated,
        layer=layer,
    )


def _kept_by_norm(moment: Moment, layer: FloatArray) -> FloatArray:
    """Return the input of a recomputed layer at work, where its first norm keeps that and no copy in fp32.

    The textbook's sum counts it twice.
    """
    kernels = moment.job.profile.kernels
    if kernels.norm_keeps_fp32 or not kernels.backward_transients:
        return NOTHING
    at_work = left_to_do(moment, layer)[0] - left_to_do(moment, layer - 1.0)[0]
    result: FloatArray = moment.active.checkpoint * at_work
    return result


def _received_beside(moment: Moment, layers_above: FloatArray) -> FloatArray:
    """Return the gradient that a stage received, where it is not in a buffer, nor the top layer's residual's own."""
    received = moment.received_gradient
    if received is NOTHING:
        return NOTHING
    in_buffer = received if moment.job.profile.kernels.pipelines_keep_messages else NOTHING
    return np.where(layers_above > 0, received, 0.0) - in_buffer


def _layer_reduced(moment: Moment, layer: FloatArray) -> Items:
    """Return the moment at which a layer's own gradients are copied into the buffer that they are reduced in.

    Its weights have been let go of, and the layer below is gathered ahead. The layer below being differentiated is
    worse, unless it is much smaller.
    """
    held, active, job = moment.held, moment.active, moment.job
    layers_above = moment.rows.layers - 1.0 - layer
    ahead = gathered_ahead(moment, layer)
    own = np.where(moment.expert_units, held.layer_elements - held.expert_elements, held.layer_elements)
    padded = np.where(moment.expert_units, held.layer_padded - held.expert_padded, held.layer_padded)
    recomputed, kept = left_to_do(moment, layer)
    below = active.checkpoint * np.maximum(recomputed - 1.0, 0.0) + active.layer * kept
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=layer_gradients(moment, layers_above, job.precision.compute_bytes * own),
        activations=below + active.message + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=moment.open_root
        + ahead
        + np.where(moment.is_reduced, job.profile.weights.reduce_bytes * padded, 0.0)
        + moment.buckets
        + moment.accumulated,
        layer=layer,
    )


def _held_inputs(moment: Moment, finished: FloatArray) -> FloatArray:
    """Return what hooks of finished layers still hold: each one's recomputed input and that input's gradient."""
    job, active = moment.job, moment.active
    if job.method == "full" or not job.profile.weights.frozen_layers_hold_inputs:
        return NOTHING
    recomputed = np.minimum(finished, active.recomputed_layers)
    result: FloatArray = np.where(moment.gathered_by_layer, 2.0 * active.checkpoint * recomputed, 0.0)
    return result


def _embedding_gradient(moment: Moment) -> Items:
    """Return the moment at which DTensor cuts the embedding's gradient over the tensor-parallel ranks.

    Looking tokens up in a vocabulary split by rows has no backward rule that keeps it
    split: each rank makes a gradient as large as the whole matrix, and a
    reduce-scatter makes its part of it (torch, distributed/tensor/_ops/_embedding_ops.py,
    `embedding_dense_backward_strategy`).
    """
    held, size, traffic = moment.held, moment.job.precision.compute_bytes, moment.job.profile.weights
    embedding = size * (held.root_elements - held.head_elements) * moment.rows.has_embedding
    whole = embedding * moment.layouts.tensor_parallel
    head = 0.0 if moment.own_units else size * held.head_matrix_elements
    others = held.gradients - (held.root_gradients - held.head_gradients if moment.own_units else held.root_gradients)
    sharded = np.where(moment.keeps_gradients, held.gradients, np.where(moment.stays_gathered, 0.0, others))
    gathered = np.where(moment.gathered_by_layer, moment.open_root + moment.last_unit, 0.0) + np.where(
        moment.gathered_once, moment.open_root + np.where(moment.stays_gathered, moment.whole_layers, 0.0), 0.0
    )
    is_whole = moment.is_gathered & (moment.layouts.tensor_parallel > 1) & moment.rows.has_embedding
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(sharded + np.where(is_whole, head + whole, 0.0)),
        activations=moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=gathered
        + np.where(is_whole, embedding, 0.0)
        + np.where(moment.is_reduced, traffic.reduce_bytes * held.layer_padded, 0.0)
        + moment.buckets
        + moment.accumulated,
        layer=BELOW_ALL_LAYERS,
    )


def _added_embedding_gradient(moment: Moment) -> Items:
    """Return the moment at which the embedding's gradient is whole and not yet added to the accumulated one.

    Kernels that add a matrix's gradient up where it accumulates are not the embedding's (Megatron-Core,
    distributed/distributed_data_parallel.py, `_make_backward_post_hook`).
    """
    held, active = moment.held, moment.active
    embedding = held.root_elements - held.head_elements
    has_embedding = moment.rows.has_embedding & ~moment.is_gathered
    fresh = np.where(has_embedding, moment.job.precision.compute_bytes * embedding, 0.0)
    beside = np.where(has_embedding, active.message + moment.received_gradient, 0.0)
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(held.gradients + fresh),
        activations=beside + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=moment.buckets + moment.accumulated,
        layer=BELOW_ALL_LAYERS,
    )


def _root_reduction(moment: Moment) -> Items:
    """Return the end of the backward pass, when FSDP reduces the last unit: embedding, norm and head, or the first."""
    held, job = moment.held, moment.job
    reduced = NOTHING
    gradients = held.gradients
    if moment.any_gathered:
        whole, padded, sent = moment.root, held.root_padded, held.root_gradients_sent
        if moment.own_units:
            whole, padded = moment.last_unit, held.root_padded - held.head_padded
            sent = held.root_gradients_sent - held.head_gradients_sent
        # The shard is made once the whole gradients have been copied and let go of: the larger of the two counts.
        shard = held.root_gradients - held.head_gradients if moment.own_units else held.root_gradients
        gradients = gradients - np.where(moment.is_reduced, np.minimum(shard, whole), 0.0) + sent
        reduced = np.where(moment.is_reduced, whole + job.profile.weights.reduce_bytes * padded, 0.0)
        if moment.stays_gathered.any():
            first, first_gradients = _first_reduced(moment)
            reduced = reduced + np.where(moment.stays_gathered, first, 0.0)
            gradients = np.where(moment.stays_gathered, first_gradients, gradients)
    if moment.zero is not None:
        gradients = gradients + moment.zero.embedding + np.where(moment.zero.divides_gradients, moment.zero.kept, 0.0)
    return items_at(
        moment,
        "root gradient reduction",
        parameters=held.parameters,
        gradients=np.ceil(gradients),
        # A pipeline reduces when no micro-batch waits any more.
        activations=np.where(moment.stays_gathered, 0.0, moment.others_activations) + moment.messages,
        logits=NOTHING,
        communication=reduced + moment.end_buckets + moment.accumulated,
    )


def _first_reduced(moment: Moment) -> tuple[FloatArray, FloatArray]:
    """Return gathered weights, buffer and shard as a pipeline's stage reduces its first unit after the last pass.

    All others are gathered still, and none of the summed gradients has been let go of.
    """
    held, traffic, rows = moment.held, moment.job.profile.weights, moment.rows
    size = moment.job.precision.compute_bytes
    embedding = held.root_elements - held.head_elements
    if not moment.own_units:
        embedding = held.root_elements
    padded = held.root_padded - held.head_padded if moment.own_units else held.root_padded
    shard = held.root_gradients - held.head_gradients if moment.own_units else held.root_gradients
    first = np.where(rows.has_embedding, embedding, held.layer_elements)
    buffer = traffic.reduce_bytes * np.where(rows.has_embedding, padded, held.layer_padded)
    gathered = moment.root + moment.whole_layers - size * first
    return gathered + buffer, np.where(rows.has_embedding, shard, held.layer_gradients)
