"""The event at which the two gradients of a tied table meet: the head's waits for the embedding's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.memory.items import BELOW_ALL_LAYERS, NOTHING, Items
from plimsoll.planners.memory.step_context import StepContext, items_at


def tied_table_items(step: StepContext) -> Iterator[Items]:
    """Yield the end of the backward pass of a model whose head multiplies by its embedding, where that learns.

    Looking tokens up makes a gradient as large as the whole table (torch, aten `embedding_dense_backward`), which is
    then added into the head's (torch, csrc/autograd/input_buffer.cpp). Under full sharding the root is gathered still
    and the lowest layer's gradients are being reduced.
    """
    job, held = step.job, step.held
    if not (job.model.tied_head and job.method == "full" and job.profile.weights.tied_gradients_meet):
        return
    has_both = step.rows.has_embedding & step.rows.has_head
    table = np.where(has_both, held.head_matrix_elements, 0.0)
    size, traffic = job.precision.compute_bytes, job.profile.weights
    sharded = np.where(step.keeps_gradients, held.gradients, held.gradients - held.root_gradients)
    gradients = np.where(step.is_gathered, sharded + 2 * size * table, held.gradients + job.states.gradient * table)
    gathered = NOTHING
    if step.any_gathered:
        reduced = np.where(step.is_reduced, traffic.reduce_bytes * held.layer_padded, 0.0)
        gathered = np.where(step.is_gathered, step.root + reduced, 0.0)
    yield items_at(
        step,
        "backward",
        "tied gradients meet",
        gradients=np.ceil(gradients),
        activations=step.active.p2p_message + step.constant_activations,
        communication=gathered + step.buckets + step.accumulated,
        layer=BELOW_ALL_LAYERS,
    )
