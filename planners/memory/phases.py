"""The moments of a step at which memory can be at its worst.

A peak is the maximum over moments and never a sum of each part's own peak: the
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
from plimsoll.planners.memory.companions import companion_items
from plimsoll.planners.memory.evaluation import evaluation_items
from plimsoll.planners.memory.forward import forward_items
from plimsoll.planners.memory.items import FORWARD, NOTHING, Items
from plimsoll.planners.memory.kinds_apart import kinds_apart
from plimsoll.planners.memory.moment import Moment, items_at
from plimsoll.planners.memory.zero import OPTIMIZER_DIVIDED


def phase_items(moment: Moment) -> Iterator[Items]:
    """Yield what is held at every moment that can be the worst, in the order of `PHASES`."""
    job = moment.job
    kinds = kinds_apart(moment)
    yield from forward_items(moment, kinds)
    yield from backward_items(moment, kinds)
    yield _optimizer_step(moment)
    if job.profile.loads_whole_weights:
        yield _loading(moment)
    if job.evaluation is not None:
        yield from evaluation_items(moment, job.evaluation)
    yield from companion_items(moment.layouts, job, moment.held, moment.active)


def forward_begins(moment: Moment) -> Items:
    """Return what is held as the fullest micro-batch's forward pass begins, which is never the worst moment."""
    held = moment.held
    return items_at(
        moment,
        FORWARD,
        parameters=held.parameters,
        gradients=np.where(moment.keeps_gradients, np.ceil(held.gradients), 0.0),
        activations=moment.others_activations + moment.messages + held.dummy_gradients,
        logits=NOTHING,
        communication=moment.buckets,
    )


def _optimizer_step(moment: Moment) -> Items:
    """Return the optimizer's step, with its temporaries where it does not work in place."""
    held, zero = moment.held, moment.zero
    on_device = moment.layouts.offload == 0
    transient = np.where(on_device, _optimizer_temporaries(moment), 0.0)
    gradients = held.gradients
    if zero is not None:
        transient = transient + np.where(on_device, zero.temporaries, 0.0)
        # Of all gradients that a rank of stage 1 had, it keeps those of the tensors that its part touches.
        gradients = np.where(moment.layouts.zero_stage == OPTIMIZER_DIVIDED, zero.touched, gradients)
    return items_at(
        moment,
        "optimizer step",
        parameters=held.parameters,
        gradients=np.ceil(gradients),
        activations=moment.messages,
        logits=NOTHING,
        communication=moment.step_buckets,
        more_optimizer=transient,
    )


def _optimizer_temporaries(moment: Moment) -> FloatArray:
    """Return what the update makes beside the states: copies of all parameters, or what one matrix takes."""
    held, kind = moment.held, moment.job.optimizer
    if kind.is_one_kernel:
        return NOTHING
    if not kind.matrix_temporary_bytes:
        copies = moment.job.profile.optimizer_transient_copies * moment.job.states.parameter
        return copies * held.local_parameters
    largest = held.largest_matrix_elements
    if kind.moments == kind.hidden_matrix_moments:  # it updates embedding and head as well
        embedding = (held.root_elements - held.head_elements) * moment.rows.has_embedding
        largest = np.maximum(largest, np.maximum(embedding, held.head_matrix_elements))
    result: FloatArray = kind.matrix_temporary_bytes * largest
    return result + kind.gram_temporary_bytes * moment.job.model.hidden_size**2


def _loading(moment: Moment) -> Items:
    """Return the time before the first step, when whole weights stand beside the shards made of them."""
    held = moment.held
    return items_at(
        moment,
        "loading",
        parameters=held.parameters + np.where(moment.is_gathered, moment.root + moment.whole_layers, 0.0),
        gradients=NOTHING,
        activations=NOTHING,
        logits=NOTHING,
        communication=NOTHING,
        more_optimizer=-held.optimizer,
    )
