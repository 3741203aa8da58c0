"""The moment at which the two gradients of a tied table meet: the head's waits for the embedding's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.memory.items import BELOW_ALL_LAYERS, NOTHING, Items
from plimsoll.planners.memory.moment import Moment, items_at


def tied_table_items(moment: Moment) -> Iterator[Items]:
    """Yield the end of the backward pass of a model whose head multiplies by its embedding, where that learns.

    Looking tokens up makes a gradient as large as the whole table (torch, aten `embedding_dense_backward`), which is
    then added into the head's (torch, csrc/autograd/input_buffer.cpp). Under full sharding the root is gathered still
    and the lowest layer's gradients are being reduced.
    """
    job, held = moment.job, moment.held
    if not (job.model.tied_head and job.method == "full" and job.profile.weights.tied_gradients_meet):
        return
    has_both = moment.rows.has_embedding & moment.rows.has_head
    table = np.where(has_both, held.head_matrix_elements, 0.0)
    size, traffic = job.precision.compute_bytes, job.profile.weights
    sharded = np.where(moment.keeps_gradients, held.gradients, held.gradients - held.root_gradients)
    gradients = np.where(moment.is_gathered, sharded + 2 * size * table, held.gradients + job.states.gradient * table)
    gathered = NOTHING
    if moment.any_gathered:
        reduced = np.where(moment.is_reduced, traffic.reduce_bytes * held.layer_padded, 0.0)
        gathered = np.where(moment.is_gathered, moment.root + reduced, 0.0)
    yield items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=np.ceil(gradients),
        activations=moment.active.message + moment.constant_activations,
        logits=NOTHING,
        communication=gathered + moment.buckets + moment.accumulated,
        layer=BELOW_ALL_LAYERS,
    )
