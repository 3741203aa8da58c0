"""The moments of the backward pass at a head that is gathered and reduced by itself."""

from __future__ import annotations

import numpy as np

from planners.memory.items import NOTHING, Items
from planners.memory.moment import Moment, items_at
from planners.memory.zero import ZeroBuffers

FP8, FP8_BYTES = "fp8", 1


def head_cast(moment: Moment) -> Items:
    """Return the moment at which the logits' gradient is cast for the head's own gradient.

    The top layer is gathered ahead. The gradient is there in 16 bits and in fp8 for the hidden states' gradient, which
    is done, and so is the head in fp8 (torchao, float8/float8_linear.py, `matmul_with_hp_or_float8_args.backward`).
    """
    held, active, job = moment.held, moment.active, moment.job
    size, loss = job.precision.compute_bytes, job.profile.loss
    division = moment.layouts.tensor_parallel if loss.vocabulary_parallel else 1
    logits = moment.layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    copies = size + FP8_BYTES + job.profile.kernels.fp8_cast_bytes
    gathered = np.where(moment.gathered_by_layer, size * held.head_elements + moment.layer_buffer, 0.0) + np.where(
        moment.gathered_once, moment.open_root + moment.whole_layers, 0.0
    )
    others, accumulated = moment.beside(0.0)
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=active.stage
        + others
        + active.head
        + moment.constant_activations
        + active.message
        + FP8_BYTES * held.head_matrix_elements,
        logits=np.where(moment.rows.has_head, copies * logits, 0.0),
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
