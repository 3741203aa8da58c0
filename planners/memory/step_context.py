"""What all events of a step share, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from plimsoll.planners.ground.terms import GPIPE
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.activity import Activity, casts_weights
from plimsoll.planners.memory.compression import saved_routing_bytes
from plimsoll.planners.memory.holdings import Holdings, has_gathering, in_zero_stages, rotary_table_bytes
from plimsoll.planners.memory.items import NOTHING, PHASES, Items
from plimsoll.planners.memory.p2p_buffers import p2p_buffer_bytes, received_gradient_bytes
from plimsoll.planners.memory.zero import GRADIENTS_DIVIDED, WEIGHTS_DIVIDED, ZeroBuffers, zero_buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What lies around the layers that are differentiated, where those are not all alike.

    `ahead_buffer` are the bytes that the layer below is gathered into, `above_padded` the elements that the layer
    above was reduced in, `above_without_experts` those that its experts had no part in.
    """

    ahead_buffer: FloatArray
    above_padded: FloatArray
    above_without_experts: FloatArray


@dataclass(frozen=True, kw_only=True)  # without slots, so that what the phases ask for again is worked out once
class StepContext:
    """What the phases share, for all stages.

    `own_units` says that the embedding, and the last norm with the head, are gathered
    and reduced by themselves; else they are one with the root. `open_root` is what of
    them stays gathered while layers are differentiated, `last_unit` what is gathered
    ahead while the lowest layer is. `expert_units` says where a layer's experts are one
    too, over the ranks that hold the same ones (torchtitan,
    models/llama4/infra/parallelize.py, `apply_fsdp`). `waiting_activations` is what one
    micro-batch keeps that waits, `others_activations` what all do but one. `accumulated` are the whole
    gradients in the reduction's width that a pipeline sums until its last micro-batch;
    until then it has no shards of them. `buckets` are those of the forward pass, and of every event unless `zero` has
    DeepSpeed's. `p2p_buffers` are a pipeline's P2P buffers,
    `received_gradient` the one that a stage's backward pass begins with.
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
    expert_units: BoolArray
    open_root: FloatArray
    last_unit: FloatArray
    autocast_copies: BoolArray
    keeps_gradients: BoolArray
    always_keeps_gradients: bool
    any_gathered: bool
    any_copies: bool
    waiting_activations: FloatArray
    others_activations: FloatArray
    p2p_buffers: FloatArray
    received_gradient: FloatArray
    constant_activations: FloatArray
    buckets: FloatArray
    accumulated: FloatArray
    zero: ZeroBuffers | None
    neighbours: Neighbours | None = None

    def layer_buckets(self, layers_above: FloatArray) -> FloatArray:
        """Return the buckets while a layer is differentiated that so many are above of."""
        if self.zero is None:
            return self.buckets
        return self.zero.in_layer(self.one_layer * layers_above, self.finished_elements(layers_above))

    def finished_elements(self, layers_above: FloatArray) -> FloatArray:
        """Return the elements whose gradients have been made when so many layers are done."""
        result: FloatArray = self.held.head_elements + self.held.layer_elements * layers_above
        return result

    @property
    def end_buckets(self) -> FloatArray:
        """Return the buckets at the end of the backward pass."""
        return self.buckets if self.zero is None else self.zero.bucket + self.zero.end_copy

    @property
    def step_buckets(self) -> FloatArray:
        """Return the buckets while the optimizer works."""
        return self.buckets if self.zero is None else self.zero.step

    def beside(self, done_elements: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Return what other micro-batches keep, and the gradients summed until those of so many elements are whole.

        GPipe's first backward pass finds all micro-batches waiting and no sum, the second one fewer and the whole
        sum: the worse of the two.
        """
        others, summed = self.others_activations, self.accumulated
        if self.job.pipeline_schedule != GPIPE or summed is NOTHING:
            return others, summed
        first = np.minimum(self.job.profile.weights.reduce_bytes * done_elements, summed)
        fewer = np.maximum(others - self.waiting_activations, 0.0)
        is_first = others + first >= fewer + summed
        return np.where(is_first, others, fewer), np.where(is_first, first, summed)

    @cached_property
    def kept_gradients(self) -> FloatArray:
        """Return the gradients that lie on the device from one micro-batch to the next, in whole bytes."""
        return np.where(self.keeps_gradients, np.ceil(self.held.gradients), 0.0)

    @cached_property
    def is_gathered(self) -> BoolArray:
        """Return where weights are sharded and gathered, in whatever way."""
        return self.gathered_by_layer | self.gathered_once

    @cached_property
    def is_reduced(self) -> BoolArray:
        """Return where a unit's gradients are reduced as soon as they are whole."""
        return self.is_gathered & ~self.stays_gathered

    @cached_property
    def root(self) -> FloatArray:
        """Return embedding, last norm and head in the compute precision, with what is frozen of them."""
        result: FloatArray = self.job.precision.compute_bytes * self.held.root_elements + self.held.root_frozen
        return result

    @cached_property
    def one_layer(self) -> FloatArray:
        """Return the largest layer's weights in the compute precision, with what is frozen of them."""
        result: FloatArray = self.job.precision.compute_bytes * self.held.layer_elements + self.held.layer_frozen
        return result

    @cached_property
    def layer_buffer(self) -> FloatArray:
        """Return the buffer that a layer is gathered into, or the stack's fixed budget for it."""
        held, size = self.held, self.job.precision.compute_bytes
        zero = self.job.profile.zero
        if zero is not None:
            return size * np.minimum(zero.prefetch_bucket_elements, held.stage_elements)
        result: FloatArray = size * held.layer_padded + held.layer_frozen
        return result

    @cached_property
    def ahead_buffer(self) -> FloatArray:
        """Return the buffer that the next lower layer is gathered into."""
        return self.layer_buffer if self.neighbours is None else self.neighbours.ahead_buffer

    @cached_property
    def reduced_above(self) -> FloatArray:
        """Return the elements that the layer above was reduced in last: all of it, or what its experts left."""
        if self.neighbours is None:
            whole, apart = self.held.layer_padded, self.held.layer_padded - self.held.expert_padded
        else:
            whole, apart = self.neighbours.above_padded, self.neighbours.above_without_experts
        result: FloatArray = np.where(self.expert_units, apart, whole)
        return result

    @cached_property
    def whole_layers(self) -> FloatArray:
        """Return every layer of the stage in the compute precision."""
        held = self.held
        size = self.job.precision.compute_bytes
        result: FloatArray = size * (held.stage_elements - held.root_elements) + held.layer_frozen * self.rows.layers
        return result


def step_context(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> StepContext:
    """Return what the phases of a step share."""
    traffic, states = job.profile.weights, job.states
    stage = layouts.zero_stage
    buckets = NOTHING
    if traffic.gradient_bucket_stages:
        has_buckets = in_zero_stages(stage, traffic.gradient_bucket_stages) & (layouts.data_parallel > 1)
        buckets = np.where(has_buckets, states.gradient * held.stage_elements, 0.0)
    buckets = buckets + saved_routing_bytes(layouts, job, held.stage_elements)
    is_gathered = has_gathering(stage, job, "gathered_by_layer")
    stays = is_gathered & (layouts.pipeline_parallel > 1) & np.bool_(traffic.pipelines_gather_once)
    # A value model that learns has had its gradients before the policy has its own.
    resident = traffic.gradients_always_resident or any(companion.trainable for companion in job.companions)
    keeps = resident | ((layouts.micro_batches(job.global_batch_size) > 1) & ~stays)
    gathered_once = has_gathering(stage, job, "gathered_once") | stays
    copies = casts_weights(layouts, job)
    by_layer = is_gathered & ~stays
    waiting = _waiting_micro_batch(layouts, rows, job, active)
    own_units = traffic.vocabulary_units and not job.model.tied_head
    root = job.precision.compute_bytes * held.root_elements + held.root_frozen
    embedding = job.precision.compute_bytes * (held.root_elements - held.head_elements)
    zero = zero_buffers(layouts, rows, job, held)
    if zero is not None:
        buckets = buckets + zero.forward
        # A rank's gradients at rest are whole tensors' at stage 2, and at stage 3 its parts are there for good.
        held = replace(held, gradients=np.where(stage == GRADIENTS_DIVIDED, zero.touched, held.gradients))
        keeps = keeps | (stage == WEIGHTS_DIVIDED)
    p2p_buffers = p2p_buffer_bytes(layouts, rows, job, active.p2p_message)
    received = received_gradient_bytes(layouts, rows, job, active.p2p_message)
    return StepContext(
        layouts=layouts,
        rows=rows,
        job=job,
        held=held,
        active=active,
        gathered_by_layer=by_layer,
        gathered_once=gathered_once,
        stays_gathered=stays,
        own_units=own_units,
        expert_units=is_gathered & np.bool_(traffic.vocabulary_units) & (layouts.expert_parallel > 1),
        open_root=np.where(by_layer, 0.0, embedding) if own_units else root,
        last_unit=embedding if own_units else NOTHING,
        autocast_copies=copies,
        any_gathered=bool((is_gathered | gathered_once).any()),
        any_copies=bool(copies.any()),
        keeps_gradients=np.asarray(keeps),
        always_keeps_gradients=bool(np.all(keeps)),
        p2p_buffers=p2p_buffers,
        received_gradient=received,
        waiting_activations=waiting,
        others_activations=np.maximum(rows.in_flight - 1.0, 0.0) * waiting,
        constant_activations=held.dummy_gradients
        + active.gathered
        + active.saved_routing
        + p2p_buffers
        + _pipeline_output(layouts, rows, job)
        + (0 if job.profile.is_textbook else rotary_table_bytes(job) / layouts.context_parallel),
        buckets=buckets,
        zero=zero,
        accumulated=np.where(stays, traffic.reduce_bytes * held.stage_elements, 0.0) if stays.any() else NOTHING,
    )


def _waiting_micro_batch(layouts: Candidates, rows: StageRows, job: Job, active: Activity) -> FloatArray:
    """Return what a stage keeps of a micro-batch that waits for its backward pass.

    GPipe begins no backward pass before the last forward one: the head's stage keeps what the loss is
    differentiated by, the log-softmax in fp32, of each.
    """
    if job.pipeline_schedule != GPIPE:
        return active.stage
    return active.stage + active.head + active.kept_logits + _pipeline_output(layouts, rows, job)


def _pipeline_output(layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return the logits of one micro-batch that a pipeline's last stage holds on to, where the stack does."""
    is_piped = layouts.pipeline_parallel > 1
    if not job.profile.loss.pipelines_keep_output or not is_piped.any():
        return NOTHING
    division = layouts.tensor_parallel if job.profile.loss.vocabulary_parallel else 1
    logits = layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    return np.where(is_piped & rows.has_head, job.precision.compute_bytes * logits, 0.0)


def items_at(
    step: StepContext,
    phase: str,
    event: str = "",
    *,
    gradients: FloatArray,
    activations: FloatArray,
    communication: FloatArray,
    parameters: FloatArray | None = None,
    logits: FloatArray = NOTHING,
    more_optimizer: FloatArray | float = 0.0,
    layer: FloatArray | None = None,
) -> Items:
    """Return an event's whole bytes; `parameters` are those at rest unless more are said, gradients whole already."""
    return Items(
        phase=PHASES.index(phase),
        event=event,
        parameters=np.ceil(step.held.parameters if parameters is None else parameters),
        gradients=gradients,
        optimizer=np.ceil(step.held.optimizer + more_optimizer),
        activations=np.ceil(activations),
        logits=logits if logits is NOTHING else np.ceil(logits),
        communication=np.ceil(communication),
        layer=layer,
    )
