"""The moments of a step at which memory can be at its worst.

A peak is the maximum over moments and never a sum of each part's own peak: the
logits are gone when the layers' gradients appear, and the kept activations are
gone when the optimizer works. The start of a step needs no row of its own: it
holds what the optimizer's step holds, less the gradients.

Source of the closed forms: traces of FSDP2 with transformers, 14 plans, 10 of
them within 0.04 % and the worst 2.4 % off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.layout.candidates import FULL, BoolArray, Candidates, FloatArray
from planners.memory.activity import Activity, casts_weights
from planners.memory.holdings import Holdings, rotary_table_bytes
from planners.memory.job import Job
from planners.memory.stages import StageRows

PHASES = ("forward and loss", "backward", "root gradient reduction", "optimizer step", "loading")
ALLOCATED_ITEMS = ("parameters", "gradients", "optimizer", "activations", "logits", "communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the phases share, worked out once for all rows.

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
    others_activations: FloatArray
    constant_activations: FloatArray
    buckets: FloatArray


def phase_items(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> FloatArray:
    """Return bytes as an array [phase, item, row], in the order of `PHASES` and `ALLOCATED_ITEMS`."""
    moment = _moment(layouts, rows, job, held, active)
    phases = [_loss(moment), _backward(moment), _root_reduction(moment), _optimizer_step(moment)]
    if job.profile.loads_whole_weights:
        phases.append(_loading(moment))
    return np.stack(phases)


def _moment(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> Moment:
    traffic, states = job.profile.weights, job.states
    stage = layouts.zero_stage[rows.owner]
    policy = np.array([traffic.policy.get(str(number), "resident") for number in range(4)])[stage]
    keeps = traffic.gradients_always_resident | (layouts.micro_batches(job.global_batch_size)[rows.owner] > 1)
    buckets = np.where(
        np.isin(stage, traffic.bucket_zero_stages),
        job.precision.compute_bytes * np.minimum(traffic.bucket_elements, held.stage_elements),
        0.0,
    )
    if traffic.bucket_copy_of_gradients:
        has_reducer = np.isin(stage, traffic.bucket_zero_stages) & (layouts.data_parallel[rows.owner] > 1)
        buckets = buckets + np.where(has_reducer, states.gradient * held.stage_elements, 0.0)
    has_transients = job.profile.kernels.backward_transients
    is_gathered = policy == "gathered_by_layer"
    stays = is_gathered & (layouts.pipeline_parallel[rows.owner] > 1) & np.bool_(traffic.pipelines_gather_once)
    buckets = buckets + np.where(stays, traffic.reduce_bytes * held.stage_elements, 0.0)
    own_units = traffic.vocabulary_units and not job.model.tied_head
    root = job.precision.compute_bytes * held.root_elements + held.root_frozen
    embedding = job.precision.compute_bytes * (held.root_elements - held.head_elements)
    return Moment(
        layouts=layouts,
        rows=rows,
        job=job,
        held=held,
        active=active,
        gathered_by_layer=is_gathered & ~stays,
        gathered_once=(policy == "gathered_once") | stays,
        stays_gathered=stays,
        own_units=own_units,
        open_root=np.where(is_gathered & ~stays, 0.0, embedding) if own_units else root,
        last_unit=embedding if own_units else np.zeros_like(root),
        autocast_copies=casts_weights(layouts, rows, job),
        keeps_gradients=np.broadcast_to(keeps, stage.shape),
        others_activations=np.maximum(rows.in_flight - 1.0, 0.0) * active.stage,
        constant_activations=held.dequantized
        + held.dummy_gradients
        + active.gathered
        + (rotary_table_bytes(job) if has_transients else 0),
        buckets=buckets,
    )


def _loss(moment: Moment) -> FloatArray:
    """Return the end of the forward pass, with the loss being computed where the head is."""
    held, active, job = moment.held, moment.active, moment.job
    size = job.precision.compute_bytes
    root = size * held.root_elements + held.root_frozen
    beside = size * held.head_elements if moment.own_units else root + _prefetch(moment)
    gathered = np.where(moment.gathered_by_layer & job.profile.loss.inside_model, beside, 0.0) + np.where(
        moment.gathered_once, root + _whole_layers(moment), 0.0
    )
    # Only what learns is kept in fp32 and so copied; a frozen base already lies in the compute precision.
    layers = held.stage_elements - held.root_elements
    # Those of recomputed layers are let go of with the forward pass, when the loss has yet to be differentiated.
    let_go = size * layers * active.recomputed_layers / np.maximum(moment.rows.layers, 1)
    less = active.logits * (1.0 - job.profile.loss.forward_logits_bytes / job.profile.loss.logits_bytes)
    is_forward = moment.autocast_copies & (let_go > less)
    kept = size * (layers + held.head_matrix_elements) - np.where(is_forward, 0.0, let_go)
    return _items(
        moment,
        parameters=held.parameters + np.where(moment.autocast_copies, kept, 0.0),
        gradients=np.where(moment.keeps_gradients, held.gradients, 0.0),
        activations=active.stage + moment.others_activations + active.head + moment.constant_activations,
        logits=active.logits - np.where(is_forward, less, 0.0),
        communication=gathered + moment.buckets,
    )


def _backward(moment: Moment) -> FloatArray:
    """Return the worst layer of the backward pass.

    Downwards the gradients grow and the kept activations shrink, both linearly,
    so the worst is at an end: the top two layers, the edge of the recomputed
    ones, or the bottom; where units are gathered alone also the lowest layer but one,
    the last that a layer is gathered ahead of.
    """
    top: FloatArray = moment.rows.layers.astype(np.float64) - 1.0
    edge = moment.active.recomputed_layers
    worst = _backward_of(moment, top)
    others = [top - 1.0, edge, edge - 1.0, np.zeros_like(top)]
    if moment.own_units:
        others.append(np.ones_like(top))
    for layer in others:
        items = _backward_of(moment, np.clip(layer, 0.0, top))
        worst = np.where(items.sum(axis=0) > worst.sum(axis=0), items, worst)
    if moment.own_units:
        items = _head_reduction(moment)
        worst = np.where(items.sum(axis=0) > worst.sum(axis=0), items, worst)
    return worst


def _head_reduction(moment: Moment) -> FloatArray:
    """Return the moment at which head and last norm are reduced by themselves, the top layer gathered ahead.

    Only their gradients in both widths are left of them: the weights have been let go of.
    """
    held, active, traffic = moment.held, moment.active, moment.job.profile.weights
    size = moment.job.precision.compute_bytes
    is_gathered = moment.gathered_by_layer | moment.gathered_once
    gathered = np.where(moment.gathered_by_layer, _prefetch(moment), 0.0) + np.where(
        moment.gathered_once, moment.open_root + _whole_layers(moment), 0.0
    )
    return _items(
        moment,
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, held.gradients, held.head_gradients) + size * held.head_elements,
        activations=active.stage + moment.others_activations + moment.constant_activations + active.checkpoint,
        logits=np.zeros_like(held.parameters),
        communication=gathered + np.where(is_gathered, traffic.reduce_bytes * held.head_padded, 0.0) + moment.buckets,
    )


def _backward_of(moment: Moment, layer: FloatArray) -> FloatArray:
    """Return the moment at which one layer (0 the lowest of the stage) is differentiated."""
    held, active, job = moment.held, moment.active, moment.job
    size, traffic = job.precision.compute_bytes, job.profile.weights
    is_gathered = moment.gathered_by_layer | moment.gathered_once
    layers_above = moment.rows.layers - 1.0 - layer
    one_layer = size * held.layer_elements + held.layer_frozen
    ahead = np.where(layer > 0, _prefetch(moment), moment.last_unit)
    kept_layers = np.where(moment.stays_gathered, moment.rows.layers, layer + 1.0)
    gathered = np.where(moment.gathered_by_layer, moment.open_root + one_layer + ahead, 0.0) + np.where(
        moment.gathered_once, moment.open_root + one_layer * kept_layers, 0.0
    )
    before = held.head_padded if moment.own_units else np.zeros_like(layer)
    reduced = np.where(is_gathered, traffic.reduce_bytes * np.where(layers_above > 0, held.layer_padded, before), 0.0)
    is_recomputed = moment.layouts.recompute[moment.rows.owner] == FULL
    copied_layers = np.where(is_recomputed, 1.0, layer + 1.0)
    copies = np.where(moment.autocast_copies, size * held.layer_elements * copied_layers, 0.0)
    finished = held.layer_gradients * np.where(is_gathered, layers_above, layers_above + 1.0)
    # The root's gradients wait unsharded for the end of the backward pass.
    unsharded = np.where(is_gathered & (not moment.own_units), size * held.head_matrix_elements, 0.0)
    sharded = held.head_gradients if moment.own_units else np.zeros_like(layer)
    head_gradient = np.where(is_gathered, unsharded + sharded, job.states.gradient * held.head_matrix_elements)
    whole = held.gradients + unsharded
    fresh = size * held.largest_matrix_elements if job.profile.kernels.backward_transients else 0.0
    alive = (
        active.checkpoint * np.minimum(layer + 1.0, active.recomputed_layers)
        + active.layer * np.maximum(layer - active.recomputed_layers, 0.0)
        + active.working_set
        + active.transient
        + _held_inputs(moment, layers_above)
    )
    return _items(
        moment,
        parameters=held.parameters + copies,
        gradients=np.where(moment.keeps_gradients, whole, np.minimum(finished + head_gradient, whole)) + fresh,
        activations=alive + moment.others_activations + moment.constant_activations,
        logits=np.zeros_like(layer),
        communication=gathered + reduced + moment.buckets,
    )


def _held_inputs(moment: Moment, finished: FloatArray) -> FloatArray:
    """Return what hooks of finished layers still hold: each one's recomputed input and that input's gradient."""
    job, active = moment.job, moment.active
    if job.method == "full" or not job.profile.weights.frozen_layers_hold_inputs:
        return np.zeros_like(finished)
    recomputed = np.minimum(finished, active.recomputed_layers)
    result: FloatArray = np.where(moment.gathered_by_layer, 2.0 * active.checkpoint * recomputed, 0.0)
    return result


def _root_reduction(moment: Moment) -> FloatArray:
    """Return the end of the backward pass, when FSDP reduces the last unit: embedding, norm and head, or the first."""
    held, job = moment.held, moment.job
    is_gathered = moment.gathered_by_layer | moment.gathered_once
    whole, padded = job.precision.compute_bytes * held.root_elements + held.root_frozen, held.root_padded
    if moment.own_units:
        whole, padded = moment.last_unit, held.root_padded - held.head_padded
    return _items(
        moment,
        parameters=held.parameters,
        gradients=held.gradients,
        activations=moment.others_activations,
        logits=np.zeros_like(whole),
        communication=np.where(is_gathered, whole + job.profile.weights.reduce_bytes * padded, 0.0) + moment.buckets,
    )


def _optimizer_step(moment: Moment) -> FloatArray:
    """Return the optimizer's step, with its temporaries where it does not work in place."""
    held = moment.held
    on_device = moment.layouts.offload[moment.rows.owner] == 0
    copies = moment.job.profile.optimizer_transient_copies * moment.job.states.parameter
    transient = np.where(on_device, copies * held.local_parameters, 0.0)
    nothing = np.zeros_like(held.parameters)
    return _items(
        moment,
        parameters=held.parameters,
        gradients=held.gradients,
        activations=nothing,
        logits=nothing,
        communication=moment.buckets,
        more_optimizer=transient,
    )


def _loading(moment: Moment) -> FloatArray:
    """Return the time before the first step, when whole weights stand beside the shards made of them."""
    held, size = moment.held, moment.job.precision.compute_bytes
    whole = size * held.stage_elements + held.root_frozen + held.layer_frozen * moment.rows.layers
    is_sharded = moment.gathered_by_layer | moment.gathered_once
    nothing = np.zeros_like(whole)
    return _items(
        moment,
        parameters=held.parameters + np.where(is_sharded, whole, 0.0),
        gradients=nothing,
        activations=nothing,
        logits=nothing,
        communication=nothing,
        more_optimizer=-held.optimizer,
    )


def _items(
    moment: Moment,
    *,
    parameters: FloatArray,
    gradients: FloatArray,
    activations: FloatArray,
    logits: FloatArray,
    communication: FloatArray,
    more_optimizer: FloatArray | float = 0.0,
) -> FloatArray:
    optimizer = moment.held.optimizer + more_optimizer
    return np.ceil(np.stack([parameters, gradients, optimizer, activations, logits, communication]))


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
