"""The moments at a head: in fp8, of DeepSpeed's, and of one that is reduced by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.moment import Moment, items_at
from plimsoll.planners.memory.zero import ZeroBuffers

FP8, FP8_BYTES = "fp8", 1


def head_casts(moment: Moment) -> Iterator[Items]:
    """Yield the moments at which the head's products cast what they multiply to fp8, by torchao's separate operations.

    In the forward pass and for the hidden states' gradient that is the head itself, for the head's own gradient the
    logits' (torchao, float8/float8_linear.py, `matmul_with_hp_or_float8_args`).
    """
    held, active, job = moment.held, moment.active, moment.job
    size, cast, loss = job.precision.compute_bytes, job.profile.kernels.fp8_cast_bytes, job.profile.loss
    division = moment.layouts.tensor_parallel if loss.vocabulary_parallel else 1
    logits = moment.layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    logits = np.where(moment.rows.has_head, logits, 0.0)
    weight = held.head_matrix_elements
    root = size * held.head_elements if moment.own_units else moment.root
    kept = active.stage + active.head
    # The buffer of a unit of its own is there in the forward pass, and the top layer, gathered ahead, from the loss on.
    buffer = root if moment.own_units else NOTHING
    yield _head_at_work(moment, kept + cast * weight, NOTHING, root, buffer, phase="forward and loss")
    # The gradient in 16 bits, and in fp8.
    gradients = (size + FP8_BYTES) * logits
    yield _head_at_work(moment, kept + cast * weight, gradients, root, moment.layer_buffer)
    # The hidden states' gradient is done, and the head in fp8 not yet let go of.
    done = kept + active.message + FP8_BYTES * weight
    yield _head_at_work(moment, done, gradients + cast * logits, root, moment.layer_buffer)


def _head_at_work(
    moment: Moment,
    activations: FloatArray,
    logits: FloatArray,
    root: FloatArray,
    ahead: FloatArray,
    *,
    phase: str = "backward",
) -> Items:
    others, accumulated = moment.beside(0.0)
    gathered = np.where(moment.gathered_by_layer, root + ahead, 0.0) + np.where(
        moment.gathered_once, moment.open_root + moment.whole_layers, 0.0
    )
    return items_at(
        moment,
        phase,
        parameters=moment.held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(moment.held.gradients), 0.0),
        activations=activations + others + moment.constant_activations,
        logits=logits,
        communication=gathered + moment.buckets + accumulated,
    )


def head_reduction(moment: Moment) -> Items:
    """Return the moment at which head and last norm are reduced by themselves, the top layer gathered ahead.

    Only their gradients in both widths are left of them: the weights have been let go of.
    """
    held, active, traffic = moment.held, moment.active, moment.job.profile.weights
    gathered = NOTHING
    if moment.any_gathered:
        gathered = (
            np.where(moment.gathered_by_layer, moment.layer_buffer, 0.0)
            + np.where(moment.gathered_once, moment.open_root + moment.whole_layers, 0.0)
            + np.where(moment.is_reduced, traffic.reduce_bytes * held.head_padded, 0.0)
        )
    sharded = np.where(moment.keeps_gradients, held.gradients, np.where(moment.is_reduced, held.head_gradients, 0.0))
    others, accumulated = moment.beside(held.head_elements)
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(sharded + held.head_gradients_sent + moment.job.precision.compute_bytes * held.head_elements),
        activations=active.stage + others + moment.constant_activations + active.checkpoint,
        logits=NOTHING,
        communication=gathered + moment.buckets + accumulated,
    )


def head_gradient(moment: Moment, zero: ZeroBuffers) -> Items:
    """Return the moment at which DeepSpeed's head has its gradient, beside the logits' own and all that layers keep."""
    held, active, job = moment.held, moment.active, moment.job
    fresh = job.precision.compute_bytes * held.head_matrix_elements
    others, accumulated = moment.beside(0.0)
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(np.where(moment.keeps_gradients, held.gradients, 0.0) + fresh),
        activations=active.stage + others + active.head + moment.constant_activations,
        logits=active.logits * job.precision.compute_bytes / job.profile.loss.logits_bytes,
        communication=zero.forward + accumulated,
    )
