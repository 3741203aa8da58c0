"""The events at a head: in fp8, of DeepSpeed's, and of one that is reduced by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.step_context import StepContext, items_at
from plimsoll.planners.memory.zero import ZeroBuffers

FP8, FP8_BYTES = "fp8", 1


def head_casts(step: StepContext) -> Iterator[Items]:
    """Yield the events at which the head's products cast what they multiply to fp8, by torchao's separate operations.

    In the forward pass and for the hidden states' gradient that is the head itself, for the head's own gradient the
    logits' (torchao, float8/float8_linear.py, `matmul_with_hp_or_float8_args`).
    """
    held, active, job = step.held, step.active, step.job
    size, cast, loss = job.precision.compute_bytes, job.profile.kernels.fp8_cast_bytes, job.profile.loss
    division = step.layouts.tensor_parallel if loss.vocabulary_parallel else 1
    logits = step.layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    logits = np.where(step.rows.has_head, logits, 0.0)
    weight = held.head_matrix_elements
    root = size * held.head_elements if step.own_units else step.root
    kept = active.stage + active.head
    # The buffer of a unit of its own is there in the forward pass, and the top layer, gathered ahead, from the loss on.
    buffer = root if step.own_units else NOTHING
    yield _head_at_work(step, "head cast", kept + cast * weight, NOTHING, root, buffer, phase="forward and loss")
    # The gradient in 16 bits, and in fp8.
    gradients = (size + FP8_BYTES) * logits
    yield _head_at_work(step, "head cast again", kept + cast * weight, gradients, root, step.layer_buffer)
    # The hidden states' gradient is done, and the head in fp8 not yet let go of.
    done = kept + active.p2p_message + FP8_BYTES * weight
    yield _head_at_work(step, "logits' gradient cast", done, gradients + cast * logits, root, step.layer_buffer)


def _head_at_work(
    step: StepContext,
    event: str,
    activations: FloatArray,
    logits: FloatArray,
    root: FloatArray,
    ahead: FloatArray,
    *,
    phase: str = "backward",
) -> Items:
    others, accumulated = step.beside(0.0)
    gathered = np.where(step.gathered_by_layer, root + ahead, 0.0) + np.where(
        step.gathered_once, step.open_root + step.whole_layers, 0.0
    )
    return items_at(
        step,
        phase,
        event,
        gradients=step.kept_gradients,
        activations=activations + others + step.constant_activations,
        logits=logits,
        communication=gathered + step.buckets + accumulated,
    )


def head_reduction(step: StepContext) -> Items:
    """Return the event at which head and last norm are reduced by themselves, the top layer gathered ahead.

    Only their gradients in both widths are left of them: the weights have been let go of.
    """
    held, active, traffic = step.held, step.active, step.job.profile.weights
    gathered = NOTHING
    if step.any_gathered:
        gathered = (
            np.where(step.gathered_by_layer, step.layer_buffer, 0.0)
            + np.where(step.gathered_once, step.open_root + step.whole_layers, 0.0)
            + np.where(step.is_reduced, traffic.reduce_bytes * held.head_padded, 0.0)
        )
    sharded = np.where(step.keeps_gradients, held.gradients, np.where(step.is_reduced, held.head_gradients, 0.0))
    others, accumulated = step.beside(held.head_elements)
    return items_at(
        step,
        "backward",
        "head reduced",
        gradients=np.ceil(sharded + held.head_gradients_sent + step.job.precision.compute_bytes * held.head_elements),
        activations=active.stage + others + step.constant_activations + active.checkpoint,
        communication=gathered + step.buckets + accumulated,
    )


def head_gradient(step: StepContext, zero: ZeroBuffers) -> Items:
    """Return the event at which DeepSpeed's head has its gradient, beside the logits' own and all that layers keep."""
    held, active, job = step.held, step.active, step.job
    fresh = job.precision.compute_bytes * held.head_matrix_elements
    others, accumulated = step.beside(0.0)
    return items_at(
        step,
        "backward",
        "head gradient",
        gradients=np.ceil(np.where(step.keeps_gradients, held.gradients, 0.0) + fresh),
        activations=active.stage + others + active.head + step.constant_activations,
        logits=active.logits * job.precision.compute_bytes / job.profile.loss.logits_bytes,
        communication=zero.forward + accumulated,
    )
