"""The events of a step at which memory can be at its worst.

A peak is the maximum over events and never a sum of each part's own peak: the
logits are gone when the layers' gradients appear, and the kept activations are
gone when the optimizer works. The start of a step needs no row of its own: it
holds what the optimizer's step holds, less the gradients.

Source of the closed forms: traces of FSDP2 with transformers, operation by operation (docs/agreement.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.backward import backward_items
from plimsoll.planners.memory.forward import forward_items
from plimsoll.planners.memory.items import FORWARD, NOTHING, Items
from plimsoll.planners.memory.step_context import StepContext, items_at
from plimsoll.planners.memory.unlike_layers import unlike_kinds
from plimsoll.planners.memory.zero import OPTIMIZER_DIVIDED


def event_items(step: StepContext) -> Iterator[Items]:
    """Yield what is held at every event that can be the worst, in the order of `PHASES`."""
    kinds = unlike_kinds(step)
    yield from forward_items(step, kinds)
    yield from backward_items(step, kinds)
    yield _optimizer_step(step)


def forward_begins(step: StepContext) -> Items:
    """Return what is held as the fullest micro-batch's forward pass begins, which is never the worst event."""
    held = step.held
    return items_at(
        step,
        FORWARD,
        gradients=step.kept_gradients,
        activations=step.others_activations + step.p2p_buffers + held.dummy_gradients,
        communication=step.buckets,
    )


def _optimizer_step(step: StepContext) -> Items:
    """Return the optimizer's step, with its temporaries where it does not work in place."""
    held, zero = step.held, step.zero
    on_device = step.layouts.offload == 0
    transient = np.where(on_device, _optimizer_temporaries(step), 0.0)
    gradients = held.gradients
    if zero is not None:
        transient = transient + np.where(on_device, zero.temporaries, 0.0)
        # Of all gradients that a rank of stage 1 had, it keeps those of the tensors that its part touches.
        gradients = np.where(step.layouts.zero_stage == OPTIMIZER_DIVIDED, zero.touched, gradients)
    return items_at(
        step,
        "optimizer step",
        gradients=np.ceil(gradients),
        activations=step.p2p_buffers,
        communication=step.step_buckets,
        more_optimizer=transient,
    )


def _optimizer_temporaries(step: StepContext) -> FloatArray:
    """Return what the update makes beside the states: copies of all parameters, or what one matrix takes."""
    held, kind = step.held, step.job.optimizer
    if kind.is_one_kernel:
        return NOTHING
    if not kind.matrix_temporary_bytes:
        copies = step.job.profile.optimizer_transient_copies * step.job.states.parameter
        return copies * held.local_parameters
    largest = held.largest_matrix_elements
    if kind.moments == kind.hidden_matrix_moments:  # it updates embedding and head as well
        embedding = (held.root_elements - held.head_elements) * step.rows.has_embedding
        largest = np.maximum(largest, np.maximum(embedding, held.head_matrix_elements))
    result: FloatArray = kind.matrix_temporary_bytes * largest
    return result + kind.gram_temporary_bytes * step.job.model.hidden_size**2
