"""Activations on the host: what the layers keep leaves the device as it is made and comes back when it is needed.

torch's `save_on_cpu` (torch/autograd/graph.py) copies whatever autograd keeps, once for each operation that keeps it,
weights in the width they are multiplied in and the log-softmax among it, and lets go of the device's copy.
torchtune's `OffloadActivations` (training/_activation_offloading.py) does the same on a second stream, but for
parameters and the head: five tensors wait for their copies at most (`max_fwd_stash_size`). TRL 1.16
(trl/models/activation_offloading.py) sends each tensor once: what is kept again while the first copy waits stays on the
device. It knows parameters by where they lay before FSDP sharded them, so that gathered weights, and autocast's casts,
are sent as well. Megatron-Core sends parts of layers, each of their tensors as often as it is kept, on two streams of
their own (`sent_parts.py`); the highest layer of the micro-batch that is differentiated next stays. Or its first layers
send all they keep, as Transformer Engine's `DefaultOffloadSynchronizer` (pytorch/cpu_offload.py, 2.10 and later) does:
no more layers' activations are ever there than those of the others, for a layer comes back as another one goes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.layouts.stages import StageRows, deciding_stages, model_runs
from plimsoll.planners.memory.activity import Activity, activity, casts_weights
from plimsoll.planners.memory.holdings import Holdings, has_gathering, holdings
from plimsoll.planners.memory.rank_share import rank_share
from plimsoll.planners.memory.sent_parts import sent_bytes
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.stacks.records import BY_MODULES

SYNCHRONOUS = "synchronous"
OVERLAPPED_ONCE = "overlapped_once"
STASHED_TENSORS = 5  # max_fwd_stash_size of TRL and torchtune
# torch's cross_entropy: log_softmax keeps its output, and nll_loss keeps it again.
LOG_SOFTMAX_SAVES = 2


def left_on_device(active: Activity, layouts: Candidates, job: Job) -> Activity:
    """Return the activations that are on the device where they are offloaded.

    Those are what several operations keep, where each tensor is sent once, and in the forward pass at most as many
    layers' inputs as tensors wait for their copies. Backwards the layer at work has come back whole (`working_set`).
    """
    moves = layouts.activation_offload
    if not moves.any():
        return active
    if job.offload_layers is not None:
        return _without_layers(active, layouts, job)
    if job.profile.can.activation_offload == BY_MODULES:
        return _without_parts(active, moves)
    staying, waiting, head = NO_BYTES, NO_BYTES, NO_BYTES
    sends_once = job.profile.can.activation_offload == OVERLAPPED_ONCE
    if sends_once:
        staying = active.saved_by_several
    if job.profile.can.activation_offload != SYNCHRONOUS:
        waiting, head = np.minimum(STASHED_TENSORS * active.checkpoint, active.stage), active.head
    return replace(
        active,
        stage=np.where(moves, staying * active.kept_layers, active.stage),
        checkpoint=np.where(moves, 0.0, active.checkpoint),
        first_adapter_savings=np.where(moves, 0.0, active.first_adapter_savings),
        waiting=np.where(moves, waiting, 0.0),
        head=np.where(moves, head, active.head),
        layers=tuple(
            replace(
                layer,
                kept=np.where(moves, layer.saved_by_several if sends_once else 0.0, layer.kept),
                checkpoint=np.where(moves, 0.0, layer.checkpoint),
            )
            for layer in active.layers
        ),
    )


def _without_parts(active: Activity, moves: BoolArray) -> Activity:
    """Return the activations without the parts of layers that are on the host."""

    def less(amount: FloatArray, freed: FloatArray) -> FloatArray:
        return amount - np.where(moves, freed, 0.0)

    return replace(
        active,
        stage=less(active.stage, active.parts_freed - active.parts_named),
        layers=tuple(
            replace(
                layer,
                kept=less(layer.kept, layer.parts.freed),
                in_experts=less(layer.in_experts, layer.parts.freed_in_experts),
            )
            for layer in active.layers
        ),
    )


def _without_layers(active: Activity, layouts: Candidates, job: Job) -> Activity:
    """Return the activations of as many layers as stay, spread evenly: which those are changes from pass to pass."""
    stay = np.where(layouts.activation_offload, 1.0 - _offloaded_share(job), 1.0)
    return replace(
        active,
        stage=active.stage * stay,
        layers=tuple(replace(layer, kept=layer.kept * stay) for layer in active.layers),
    )


def _offloaded_share(job: Job) -> float:
    """Return the part of a model's layers that send all they keep."""
    return (job.offload_layers or 0) / job.model.num_layers


def returns_weights(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a product's own weights come back from the host with what else it kept: torch's hooks send all.

    Autocast's casts of them are counted as copies.
    """
    if job.profile.can.activation_offload != SYNCHRONOUS or not layouts.activation_offload.any():
        return np.zeros(1, dtype=bool)
    return layouts.activation_offload & ~casts_weights(layouts, job)


def offloaded_bytes(active: Activity, layouts: Candidates, rows: StageRows, held: Holdings, job: Job) -> FloatArray:
    """Return what every stage keeps on the host: all that is sent of the micro-batches in flight."""
    if not layouts.activation_offload.any():
        return NO_BYTES
    sent = _sent_bytes(active, layouts, rows, held, job)
    return np.where(layouts.activation_offload, sent * rows.in_flight, 0.0)


def micro_batch_offload_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return what one micro-batch sends to the host on each layout's fullest stage; it comes back once."""
    if not layouts.activation_offload.any():
        return np.zeros(1)
    rows = deciding_stages(layouts, job)
    if job.offload_layers is not None:
        sent = activity(layouts, rows, job).stage * _offloaded_share(job)
    elif job.profile.can.activation_offload == BY_MODULES:
        sent = _sent_parts(layouts, rows, job)
    else:
        sent = _sent_bytes(activity(layouts, rows, job), layouts, rows, holdings(layouts, rows, job), job)
    return np.where(layouts.activation_offload, sent.max(axis=0), 0.0)


def _sent_parts(layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return what one micro-batch's parts of layers send; of the last stage's highest layer, which is next, nothing."""
    share = rank_share(layouts, job)
    sent = [sent_bytes(part.block, share, job) for part in job.layers]
    whole = sum((count * each for count, each in zip(rows.layers_of_kind, sent, strict=True)), NO_BYTES)
    highest = sent[model_runs(ByIdentity(job.model))[-1].kind]
    return np.maximum(whole - np.where(rows.has_head & (rows.layers > 0), highest, 0.0), 0.0)


def _saved_logits(active: Activity, job: Job) -> FloatArray:
    """Return the log-softmax, or of a compiled loss the logits."""
    if job.profile.loss.compiled:
        return active.kept_logits
    return FP32_BYTES / job.profile.loss.logits_bytes * active.logits


def _sent_bytes(active: Activity, layouts: Candidates, rows: StageRows, held: Holdings, job: Job) -> FloatArray:
    """Return what one micro-batch sends: activations, weights of layers that are not recomputed, the log-softmax."""
    way, size = job.profile.can.activation_offload, job.precision.compute_bytes
    if job.offload_layers is not None:
        return active.stage * _offloaded_share(job)
    if way == BY_MODULES:
        return active.parts_sent
    again = active.repeated_saves * active.kept_layers if way != OVERLAPPED_ONCE else NO_BYTES
    layers = size * (held.stage_elements - held.root_elements) + held.layers_frozen
    weights = layers * active.kept_layers / np.maximum(rows.layers, 1)
    log_softmax = np.where(layouts.fused_cross_entropy, 0.0, _saved_logits(active, job))
    if way == SYNCHRONOUS:
        head = active.head + size * held.head_matrix_elements
        everything: FloatArray = active.stage + again + weights + head + LOG_SOFTMAX_SAVES * log_softmax
        return everything
    if way == OVERLAPPED_ONCE:
        moves_weights = has_gathering(layouts.zero_stage, job, "gathered_by_layer", "gathered_once")
        moved_weights = np.where(moves_weights | casts_weights(layouts, job), weights, 0.0)
        return active.stage + moved_weights + active.head + log_softmax
    return active.stage + again
