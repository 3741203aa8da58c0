"""The events of the backward pass at experts that are gathered and reduced as a unit of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.layouts.candidates import NONE, FloatArray
from plimsoll.planners.memory.descent import gathered_ahead, layer_gradients, left_to_do
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.step_context import StepContext, items_at

# What the architecture calls the operations of experts that work on every token.
SHARED = "shared"


def expert_unit_items(step: StepContext, layers: FloatArray, *, two_upper: FloatArray) -> Iterator[Items]:
    """Yield the events of these layers' experts; the upper ones have most that is live as they are copied out."""
    yield _experts_copied_out(step, two_upper)
    yield _experts_run_again(step, two_upper)
    yield from _beside_reduced_experts(step, layers)


def _reduced_above(step: StepContext, layers_above: FloatArray) -> FloatArray:
    """Return the elements that the unit above was reduced in last: those of a layer, or of the head."""
    return np.where(layers_above > 0, step.reduced_above, step.held.head_padded)


def _experts_copied_out(step: StepContext, layer: FloatArray) -> Items:
    """Return the event at which a layer's experts are copied out of their buffer, the layer before gathered ahead.

    All that the layer saved is live, and the residual's gradient.
    """
    held, active, job = step.held, step.active, step.job
    layers_above = step.rows.layers - 1.0 - layer
    size, reduce_bytes = job.precision.compute_bytes, job.profile.weights.reduce_bytes
    ahead = gathered_ahead(step, layer)
    above = _reduced_above(step, layers_above)
    gathered = step.one_layer + ahead + size * held.expert_padded + reduce_bytes * above
    recomputed, _ = left_to_do(step, layer)
    below = active.layer * np.maximum(layer - recomputed, 0.0)
    is_whole = step.layouts.recompute == NONE
    own = np.where(is_whole, active.backward.working_set, np.where(layer >= recomputed, active.layer, 0.0))
    alive = active.checkpoint * recomputed + below + own + active.p2p_message
    return items_at(
        step,
        "backward",
        "experts copied out",
        gradients=layer_gradients(step, layers_above, NOTHING),
        activations=alive + step.others_activations + step.constant_activations,
        communication=np.where(step.expert_units & step.gathered_by_layer, gathered, 0.0)
        + step.buckets
        + step.accumulated,
        layer=layer,
    )


def _experts_run_again(step: StepContext, layer: FloatArray) -> Items:
    """Return the end of a recomputed layer's second run, when its experts' outputs have been put in order.

    All that the layer saved is live, its output and the output's gradient, and, beside the layer before gathered
    ahead, the buffer that its experts were copied out of: they are gathered as in a forward pass, and the buffer is
    let go of as that ends (torch, distributed/fsdp/_fully_shard/_fsdp_state.py, `_post_forward`).
    """
    held, active = step.held, step.active
    layers_above = step.rows.layers - 1.0 - layer
    ahead = gathered_ahead(step, layer)
    above = _reduced_above(step, layers_above)
    gathered = step.open_root + step.one_layer + ahead + step.job.precision.compute_bytes * held.expert_padded
    layouts = step.layouts
    # One rank alone gathers nothing; without shared experts the gradient meets the experts' own hook first.
    runs_before_hook = any(
        operation.name.startswith(SHARED) for part in step.job.layers for operation in part.block.operations
    )
    has_buffer = step.expert_units & step.gathered_by_layer & (layouts.shard_group > layouts.expert_parallel)
    has_buffer = has_buffer & np.bool_(runs_before_hook)
    is_run_again = has_buffer & (layouts.recompute != NONE)
    recomputed, kept = left_to_do(step, layer)
    alive = active.checkpoint * recomputed + active.layer * kept + active.backward.at_combine + active.p2p_message
    return items_at(
        step,
        "backward",
        "experts run again",
        gradients=layer_gradients(step, layers_above, NOTHING),
        activations=np.where(is_run_again, alive, 0.0) + step.others_activations + step.constant_activations,
        communication=np.where(is_run_again, gathered + step.job.profile.weights.reduce_bytes * above, 0.0)
        + step.buckets
        + step.accumulated,
        layer=layer,
    )


def _beside_reduced_experts(step: StepContext, layer: FloatArray) -> Iterator[Items]:
    """Yield the events at which a layer's experts are reduced, and its first norm is differentiated meanwhile.

    Their weights have been let go of. Their gradients are copied into the buffer in the reduction's width, which
    stays beside the shard that becomes of them (torch, distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    `foreach_reduce`).
    """
    held, active, job = step.held, step.active, step.job
    size = job.precision.compute_bytes
    layers_above = step.rows.layers - 1.0 - layer
    ahead = gathered_ahead(step, layer)
    dense = size * (held.layer_elements - held.expert_elements)
    gathered = np.where(step.gathered_by_layer, step.open_root + dense + ahead, 0.0) + np.where(
        step.gathered_once, step.open_root + step.whole_layers, 0.0
    )
    reduced = np.where(
        step.expert_units & step.is_reduced,
        gathered + job.profile.weights.reduce_bytes * held.expert_padded,
        0.0,
    )
    recomputed, kept = left_to_do(step, layer)
    behind_attention = size * (held.behind_attention_elements - held.expert_elements)
    for event, own, fresh in (
        ("experts reduced", active.backward.at_expert_reduction, size * held.expert_elements),
        (
            "attention beside reduced experts",
            active.backward.attention_gradients,
            np.ceil(held.expert_gradients) + behind_attention,
        ),
        ("input norm beside reduced experts", active.backward.at_input_norm, np.ceil(held.expert_gradients) + dense),
    ):
        alive = active.checkpoint * recomputed + active.layer * kept + own
        yield items_at(
            step,
            "backward",
            event,
            gradients=layer_gradients(step, layers_above, fresh),
            activations=alive + step.others_activations + step.constant_activations,
            communication=reduced + step.buckets + step.accumulated,
            layer=layer,
        )
