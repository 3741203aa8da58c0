"""The moments of a step at which memory can be at its worst.

A peak is the maximum over moments and never a sum of each part's own peak: the
logits are gone when the layers' gradients appear, and the kept activations are
gone when the optimizer works. The start of a step needs no row of its own: it
holds what the optimizer's step holds, less the gradients.

Source of the closed forms: traces of FSDP2 with transformers, 14 plans, 10 of
them within 0.04 % and the worst 2.4 % off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planners.layout.candidates import ALL_LAYERS, FULL, BoolArray, Candidates, FloatArray
from planners.memory.activity import Activity, casts_weights
from planners.memory.companions import companion_items
from planners.memory.evaluation import evaluation_items
from planners.memory.holdings import Holdings, has_weight_policy, in_zero_stages, rotary_table_bytes
from planners.memory.items import NOTHING, PHASES, Items
from planners.memory.job import Job
from planners.memory.stages import StageRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the phases share, worked out once for all stages.

    `own_units` says that the embedding, and the last norm with the head, are gathered
    and reduced by themselves; else they are one with the root. `open_root` is what of
    them stays gathered while layers are differentiated, `last_unit` what is gathered
    ahead while the lowest layer is.
    """

    layouts: Candidates
    rows: StageRows
    job: Job
    held: Holdings
    active: Activity
    gathered_by_layer: BoolArray
    gathered_once: BoolArray
    stays_gathered: BoolArray
    own_units: bool
    open_root: FloatArray
    last_unit: FloatArray
    autocast_copies: BoolArray
    keeps_gradients: BoolArray
    always_keeps_gradients: bool
    any_gathered: bool
    any_copies: bool
    others_activations: FloatArray
    constant_activations: FloatArray
    buckets: FloatArray


def phase_items(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> Iterator[Items]:
    """Yield what is held at every moment that can be the worst, in the order of `PHASES`."""
    moment = _moment(layouts, rows, job, held, active)
    yield from _loss(moment)
    yield from _backward(moment)
    yield _root_reduction(moment)
    yield _optimizer_step(moment)
    if job.profile.loads_whole_weights:
        yield _loading(moment)
    if job.evaluation is not None:
        yield evaluation_items(layouts, rows, job, held, active)
    yield from companion_items(layouts, job, held, active)


def _moment(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> Moment:
    traffic, states = job.profile.weights, job.states
    stage = layouts.zero_stage
    has_buckets = in_zero_stages(stage, traffic.bucket_zero_stages)

    keeps = traffic.gradients_always_resident | (layouts.micro_batches(job.global_batch_size) > 1)
    buckets = np.where(
        has_buckets,
        job.precision.compute_bytes * np.minimum(traffic.bucket_elements, held.stage_elements),
        0.0,
    )
    if traffic.bucket_copy_of_gradients:
        has_reducer = has_buckets & (layouts.data_parallel > 1)
        buckets = buckets + np.where(has_reducer, states.gradient * held.stage_elements, 0.0)
    has_transients = job.profile.kernels.backward_transients
    is_gathered = has_weight_policy(stage, job, "gathered_by_layer")
    stays = is_gathered & (layouts.pipeline_parallel > 1) & np.bool_(traffic.pipelines_gather_once)
    buckets = buckets + np.where(stays, traffic.reduce_bytes * held.stage_elements, 0.0)
    gathered_once = has_weight_policy(stage, job, "gathered_once") | stays
    copies = casts_weights(layouts, job)
    by_layer = is_gathered & ~stays
    own_units = traffic.vocabulary_units and not job.model.tied_head
    root = job.precision.compute_bytes * held.root_elements + held.root_frozen
    embedding = job.precision.compute_bytes * (held.root_elements - held.head_elements)
    return Moment(
        layouts=layouts,
        rows=rows,
        job=job,
        held=held,
        active=active,
        gathered_by_layer=by_layer,
        gathered_once=gathered_once,
        stays_gathered=stays,
        own_units=own_units,
        open_root=np.where(by_layer, 0.0, embedding) if own_units else root,
        last_unit=embedding if own_units else NOTHING,
        autocast_copies=copies,
        any_gathered=bool((is_gathered | gathered_once).any()),
        any_copies=bool(copies.any()),
        keeps_gradients=np.asarray(keeps),
        always_keeps_gradients=bool(np.all(keeps)),
        others_activations=np.maximum(rows.in_flight - 1.0, 0.0) * active.stage,
        constant_activations=held.dequantized
        + held.dummy_gradients
        + active.gathered
        + (rotary_table_bytes(job) if has_transients else 0),
        buckets=buckets,
    )


def _loss(moment: Moment) -> Iterator[Items]:
    """Yield the computing of the loss where the head is; where autocast copies weights, the forward pass's end too.

    The copies of recomputed layers are let go of with the forward pass, when the loss
    has yet to be differentiated.
    """
    held, active, job = moment.held, moment.active, moment.job
    size = job.precision.compute_bytes
    gathered = NOTHING
    if moment.any_gathered:
        root = size * held.root_elements + held.root_frozen
        beside = size * held.head_elements if moment.own_units else root + _prefetch(moment)
        gathered = np.where(moment.gathered_by_layer & job.profile.loss.inside_model, beside, 0.0) + np.where(
            moment.gathered_once, root + _whole_layers(moment), 0.0
        )
    if not moment.any_copies:
        yield _loss_items(moment, NOTHING, active.logits, gathered)
        return
    # Only what learns is kept in fp32 and so copied; a frozen base already lies in the compute precision.
    layers = held.stage_elements - held.root_elements
    copies = size * (layers + held.head_matrix_elements)
    let_go = size * layers * active.recomputed_layers / np.maximum(moment.rows.layers, 1)
    yield _loss_items(moment, np.where(moment.autocast_copies, copies - let_go, 0.0), active.logits, gathered)
    less = active.logits * (1.0 - job.profile.loss.forward_logits_bytes / job.profile.loss.logits_bytes)
    yield _loss_items(moment, np.where(moment.autocast_copies, copies, 0.0), active.logits - less, gathered)


def _loss_items(moment: Moment, copies: FloatArray, logits: FloatArray, gathered: FloatArray) -> Items:
    held, active = moment.held, moment.active
    return _items(
        moment,
        "forward and loss",
        parameters=held.parameters + copies,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=active.stage + moment.others_activations + active.head + moment.constant_activations,
        logits=logits,
        communication=gathered + moment.buckets,
    )


def _backward(moment: Moment) -> Iterator[Items]:
    """Yield the layers that can be the worst of the backward pass, along an axis before the stages.

    Downwards the gradients grow and the kept activations shrink, both linearly,
    so the worst is at an end: the top two layers, the edge of the recomputed
    ones, or the bottom; where units are gathered alone also the lowest layer but one,
    the last that a layer is gathered ahead of. Where none or all are recomputed the
    edge is an end.
    """
    top: FloatArray = moment.rows.layers.astype(np.float64) - 1.0
    ends = [top, np.clip(top - 1.0, 0.0, top), np.minimum(top, 0.0)]
    if moment.own_units:
        ends.append(np.minimum(top, 1.0))
    yield _backward_of(moment, np.stack(ends))
    if (moment.layouts.full_layers != ALL_LAYERS).any():
        edge = moment.active.recomputed_layers
        yield _backward_of(moment, np.clip(np.stack([edge, edge - 1.0]), 0.0, top))
    if moment.own_units:
        yield _head_reduction(moment)


def _head_reduction(moment: Moment) -> Items:
    """Return the moment at which head and last norm are reduced by themselves, the top layer gathered ahead.

    Only their gradients in both widths are left of them: the weights have been let go of.
    """
    held, active, traffic = moment.held, moment.active, moment.job.profile.weights
    gathered = NOTHING
    if moment.any_gathered:
        is_gathered = moment.gathered_by_layer | moment.gathered_once
        gathered = (
            np.where(moment.gathered_by_layer, _prefetch(moment), 0.0)
            + np.where(moment.gathered_once, moment.open_root + _whole_layers(moment), 0.0)
            + np.where(is_gathered, traffic.reduce_bytes * held.head_padded, 0.0)
        )
    sharded = np.where(moment.keeps_gradients, held.gradients, held.head_gradients)
    return _items(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(sharded + moment.job.precision.compute_bytes * held.head_elements),
        activations=active.stage + moment.others_activations + moment.constant_activations + active.checkpoint,
        logits=NOTHING,
        communication=gathered + moment.buckets,
    )


def _backward_of(moment: Moment, layer: FloatArray) -> Items:
    """Return the moments at which layers (0 the lowest of the stage) are differentiated."""
    held, active, job = moment.held, moment.active, moment.job
    size, traffic = job.precision.compute_bytes, job.profile.weights
    is_gathered = moment.gathered_by_layer | moment.gathered_once
    layers_above = moment.rows.layers - 1.0 - layer
    gathered = reduced = copies = NOTHING
    if moment.any_gathered:
        one_layer = size * held.layer_elements + held.layer_frozen
        lasting = np.where(moment.stays_gathered, moment.rows.layers, layer + 1.0)
        ahead = np.where(layer > 0, _prefetch(moment), moment.last_unit)
        gathered = np.where(moment.gathered_by_layer, moment.open_root + one_layer + ahead, 0.0) + np.where(
            moment.gathered_once, moment.open_root + one_layer * lasting, 0.0
        )
        before = np.where(layers_above > 0, held.layer_padded, held.head_padded if moment.own_units else 0.0)
        reduced = np.where(is_gathered, traffic.reduce_bytes * before, 0.0)
    if moment.any_copies:
        copied_layers = np.where(moment.layouts.recompute == FULL, 1.0, layer + 1.0)
        copies = np.where(moment.autocast_copies, size * held.layer_elements * copied_layers, 0.0)
    recomputed, kept = _left_to_do(moment, layer)
    alive = (
        active.checkpoint * recomputed
        + active.layer * kept
        + active.working_set
        + active.transient
        + _held_inputs(moment, layers_above)
    )
    return _items(
        moment,
        "backward",
        parameters=held.parameters + copies,
        gradients=_layer_gradients(moment, layers_above),
        activations=alive + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=gathered + reduced + moment.buckets,
    )


def _left_to_do(moment: Moment, layer: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how many recomputed layers are left, this one included, and how many kept ones below it.

    The lowest layers are the recomputed ones (Megatron-LM, --recompute-method block), or every so-manieth is.
    """
    every = moment.job.recompute_every
    if every is not None and (moment.layouts.recompute == FULL).all():
        return np.floor((layer + 1.0) / every), layer - np.floor(layer / every)
    recomputed = moment.active.recomputed_layers
    return np.minimum(layer + 1.0, recomputed), np.maximum(layer - recomputed, 0.0)


def _layer_gradients(moment: Moment, layers_above: FloatArray) -> FloatArray:
    """Return whole bytes of gradients once so many layers are done: those of the layers, the head's and a fresh one.

    Gradients of a gathered root wait unsharded for the end of the backward pass, those of a head of its own do not.
    """
    held, job = moment.held, moment.job
    size = job.precision.compute_bytes
    is_gathered = moment.gathered_by_layer | moment.gathered_once
    unsharded = 0.0 if moment.own_units else np.where(is_gathered, size * held.head_matrix_elements, 0.0)
    whole = held.gradients + unsharded
    fresh = size * held.largest_matrix_elements if job.profile.kernels.backward_transients else 0.0
    if moment.always_keeps_gradients:
        return np.ceil(whole + fresh)
    done = np.where(is_gathered, layers_above, layers_above + 1.0) if moment.any_gathered else layers_above + 1.0
    finished = held.layer_gradients * done
    gathered_head = held.head_gradients if moment.own_units else size * held.head_matrix_elements
    head_gradient = np.where(is_gathered, gathered_head, job.states.gradient * held.head_matrix_elements)
    let_go = np.minimum(finished + head_gradient, whole) + fresh
    # All of them are never less than what has not been let go: a maximum is worked out far faster than a choice.
    kept = np.where(moment.keeps_gradients, np.ceil(whole + fresh), 0.0)
    return np.maximum(np.ceil(let_go), kept)


def _held_inputs(moment: Moment, finished: FloatArray) -> FloatArray:
    """Return what hooks of finished layers still hold: each one's recomputed input and that input's gradient."""
    job, active = moment.job, moment.active
    if job.method == "full" or not job.profile.weights.frozen_layers_hold_inputs:
        return NOTHING
    recomputed = np.minimum(finished, active.recomputed_layers)
    result: FloatArray = np.where(moment.gathered_by_layer, 2.0 * active.checkpoint * recomputed, 0.0)
    return result


def _root_reduction(moment: Moment) -> Items:
    """Return the end of the backward pass, when FSDP reduces the last unit: embedding, norm and head, or the first."""
    held, job = moment.held, moment.job
    reduced = NOTHING
    if moment.any_gathered:
        whole, padded = job.precision.compute_bytes * held.root_elements + held.root_frozen, held.root_padded
        if moment.own_units:
            whole, padded = moment.last_unit, held.root_padded - held.head_padded
        is_gathered = moment.gathered_by_layer | moment.gathered_once
        reduced = np.where(is_gathered, whole + job.profile.weights.reduce_bytes * padded, 0.0)
    return _items(
        moment,
        "root gradient reduction",
        parameters=held.parameters,
        gradients=np.ceil(held.gradients),
        activations=moment.others_activations,
        logits=NOTHING,
        communication=reduced + moment.buckets,
    )


def _optimizer_step(moment: Moment) -> Items:
    """Return the optimizer's step, with its temporaries where it does not work in place."""
    held = moment.held
    on_device = moment.layouts.offload == 0
    copies = moment.job.profile.optimizer_transient_copies * moment.job.states.parameter
    transient = np.where(on_device, copies * held.local_parameters, 0.0)
    return _items(
        moment,
        "optimizer step",
        parameters=held.parameters,
        gradients=np.ceil(held.gradients),
        activations=NOTHING,
        logits=NOTHING,
        communication=moment.buckets,
        more_optimizer=transient,
    )


def _loading(moment: Moment) -> Items:
    """Return the time before the first step, when whole weights stand beside the shards made of them."""
    held, size = moment.held, moment.job.precision.compute_bytes
    whole = size * held.stage_elements + held.root_frozen + held.layer_frozen * moment.rows.layers
    is_sharded = moment.gathered_by_layer | moment.gathered_once
    return _items(
        moment,
        "loading",
        parameters=held.parameters + np.where(is_sharded, whole, 0.0),
        gradients=NOTHING,
        activations=NOTHING,
        logits=NOTHING,
        communication=NOTHING,
        more_optimizer=-held.optimizer,
    )


def _items(
    moment: Moment,
    phase: str,
    *,
    parameters: FloatArray,
    gradients: FloatArray,
    activations: FloatArray,
    logits: FloatArray,
    communication: FloatArray,
    more_optimizer: FloatArray | float = 0.0,
) -> Items:
    """Return whole bytes; gradients are whole already."""
    return Items(
        phase=PHASES.index(phase),
        parameters=np.ceil(parameters),
        gradients=gradients,
        optimizer=np.ceil(moment.held.optimizer + more_optimizer),
        activations=np.ceil(activations),
        logits=logits if logits is NOTHING else np.ceil(logits),
        communication=np.ceil(communication),
    )


def _prefetch(moment: Moment) -> FloatArray:
    """Return the all-gather buffer of the next layer, or the stack's fixed budget for it."""
    held, size = moment.held, moment.job.precision.compute_bytes
    budget = moment.job.profile.weights.gather_budget_elements
    if budget:
        return size * np.minimum(budget, held.stage_elements)
    result: FloatArray = size * held.layer_padded + held.layer_frozen
    return result


def _whole_layers(moment: Moment) -> FloatArray:
    """Return every layer of the stage in the compute precision."""
    held = moment.held
    size = moment.job.precision.compute_bytes
    result: FloatArray = size * (held.stage_elements - held.root_elements) + held.layer_frozen * moment.rows.layers
    return result
