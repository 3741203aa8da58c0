"""How far the backward pass has come down: what is gathered ahead, left to differentiate, and there of gradients."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.layouts.candidates import FULL, FloatArray
from plimsoll.planners.memory.step_context import StepContext


def gathered_ahead(step: StepContext, layer: FloatArray) -> FloatArray:
    """Return the buffer that the next unit is gathered into: the layer below's, or the embedding's."""
    return np.where(layer > 0, step.ahead_buffer, step.last_unit)


def left_to_do(step: StepContext, layer: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how many recomputed layers are left, this one included, and how many kept ones below it.

    The lowest layers are the recomputed ones (Megatron-LM, --recompute-method block), or every so-manieth is.
    """
    every = step.job.recompute_every
    if every is not None and (step.layouts.recompute == FULL).all():
        return np.floor((layer + 1.0) / every), layer - np.floor(layer / every)
    recomputed = step.active.recomputed_layers
    return np.minimum(layer + 1.0, recomputed), np.maximum(layer - recomputed, 0.0)


def layer_gradients(step: StepContext, layers_above: FloatArray, fresh: FloatArray) -> FloatArray:
    """Return whole bytes of gradients once so many layers are done: those of the layers, the head's and fresh ones.

    Gradients of a gathered root wait unsharded for the end of the backward pass, those of a head of its own do not.
    """
    held, job = step.held, step.job
    size, is_gathered = job.precision.compute_bytes, step.is_gathered
    unsharded = 0.0 if step.own_units else np.where(is_gathered, size * held.head_matrix_elements, 0.0)
    whole = held.gradients + unsharded
    if step.always_keeps_gradients:
        return np.ceil(whole + fresh)
    done = np.where(is_gathered, layers_above, layers_above + 1.0) if step.any_gathered else layers_above + 1.0
    gathered_head = held.head_gradients if step.own_units else size * held.head_matrix_elements
    head_gradient = np.where(is_gathered, gathered_head, job.states.gradient * held.head_matrix_elements)
    finished = held.layer_gradients * done
    if step.stays_gathered.any():
        finished = np.where(step.stays_gathered, 0.0, finished)
        head_gradient = np.where(step.stays_gathered, unsharded, head_gradient)
    let_go = np.minimum(finished + head_gradient, whole) + fresh
    # All of them are never less than what has not been let go: a maximum is worked out far faster than a choice.
    kept = np.where(step.keeps_gradients, np.ceil(whole + fresh), 0.0)
    return np.maximum(np.ceil(let_go), kept)
