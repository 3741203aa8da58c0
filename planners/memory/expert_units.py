"""The moments of the backward pass at experts that are gathered and reduced as a unit of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.layouts.candidates import NONE, FloatArray
from plimsoll.planners.memory.descent import gathered_ahead, layer_gradients, left_to_do
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.moment import Moment, items_at

# What the architecture calls the operations of experts that work on every token.
SHARED = "shared"


def expert_unit_items(moment: Moment, layers: FloatArray, *, two_upper: FloatArray) -> Iterator[Items]:
    """Yield the moments of these layers' experts; the upper ones have most of what is there as they are copied out."""
    yield _experts_copied_out(moment, two_upper)
    yield _experts_run_again(moment, two_upper)
    yield from _beside_reduced_experts(moment, layers)


def _reduced_above(moment: Moment, layers_above: FloatArray) -> FloatArray:
    """Return the elements that the unit above was reduced in last: those of a layer, or of the head."""
    return np.where(layers_above > 0, moment.reduced_above, moment.held.head_padded)


def _experts_copied_out(moment: Moment, layer: FloatArray) -> Items:
    """Return the moment at which a layer's experts are copied out of their buffer, the layer before gathered ahead.

    All that the layer keeps is there, and the residual's gradient.
    """
    held, active, job = moment.held, moment.active, moment.job
    layers_above = moment.rows.layers - 1.0 - layer
    size, reduce_bytes = job.precision.compute_bytes, job.profile.weights.reduce_bytes
    ahead = gathered_ahead(moment, layer)
    above = _reduced_above(moment, layers_above)
    gathered = moment.one_layer + ahead + size * held.expert_padded + reduce_bytes * above
    recomputed, _ = left_to_do(moment, layer)
    below = active.layer * np.maximum(layer - recomputed, 0.0)
    is_whole = moment.layouts.recompute == NONE
    own = np.where(is_whole, active.working_set, np.where(layer >= recomputed, active.layer, 0.0))
    alive = active.checkpoint * recomputed + below + own + active.message
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=layer_gradients(moment, layers_above, NOTHING),
        activations=alive + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=np.where(moment.expert_units & moment.gathered_by_layer, gathered, 0.0)
        + moment.buckets
        + moment.accumulated,
        layer=layer,
    )


def _experts_run_again(moment: Moment, layer: FloatArray) -> Items:
    """Return the end of a recomputed layer's second run, when its experts' outputs have been put in order.

    All that the layer keeps is there, its output and the output's gradient, and, beside the layer before gathered
    ahead, the buffer that its experts were copied out of: they are gathered as in a forward pass, and the buffer is
    let go of as that ends (torch, distributed/fsdp/_fully_shard/_fsdp_state.py, `_post_forward`).
    """
    held, active = moment.held, moment.active
    layers_above = moment.rows.layers - 1.0 - layer
    ahead = gathered_ahead(moment, layer)
    above = _reduced_above(moment, layers_above)
    gathered = moment.open_root + moment.one_layer + ahead + moment.job.precision.compute_bytes * held.expert_padded
    layouts = moment.layouts
    # One rank alone gathers nothing; without shared experts the gradient meets the experts' own hook first.
    runs_before_hook = any(
        operation.name.startswith(SHARED) for part in moment.job.layers for operation in part.block.operations
    )
    has_buffer = moment.expert_units & moment.gathered_by_layer & (layouts.shard_group > layouts.expert_parallel)
    has_buffer = has_buffer & np.bool_(runs_before_hook)
    is_run_again = has_buffer & (layouts.recompute != NONE)
    recomputed, kept = left_to_do(moment, layer)
    alive = active.checkpoint * recomputed + active.layer * kept + active.combine + active.message
    return items_at(
        moment,
        "backward",
        parameters=held.parameters,
        gradients=layer_gradients(moment, layers_above, NOTHING),
        activations=np.where(is_run_again, alive, 0.0) + moment.others_activations + moment.constant_activations,
        logits=NOTHING,
        communication=np.where(is_run_again, gathered + moment.job.profile.weights.reduce_bytes * above, 0.0)
        + moment.buckets
        + moment.accumulated,
        layer=layer,
    )


def _beside_reduced_experts(moment: Moment, layer: FloatArray) -> Iterator[Items]:
    """Yield the moments at which a layer's experts are reduced, and its first norm is differentiated meanwhile.

    Their weights have been let go of. Their gradients are copied into the buffer in the reduction's width, which
    stays beside the shard that becomes of them (torch, distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    `foreach_reduce`).
    """
    held, active, job = moment.held, moment.active, moment.job
    size = job.precision.compute_bytes
    layers_above = moment.rows.layers - 1.0 - layer
    ahead = gathered_ahead(moment, layer)
    dense = size * (held.layer_elements - held.expert_elements)
    gathered = np.where(moment.gathered_by_layer, moment.open_root + dense + ahead, 0.0) + np.where(
        moment.gathered_once, moment.open_root + moment.whole_layers, 0.0
    )
    reduced = np.where(
        moment.expert_units & moment.is_reduced,
        gathered + job.profile.weights.reduce_bytes * held.expert_padded,
        0.0,
    )
    recomputed, kept = left_to_do(moment, layer)
    behind_attention = size * (held.behind_attention_elements - held.expert_elements)
    for own, fresh in (
        (active.experts_reduced, size * held.expert_elements),
        (active.attention_gradients, np.ceil(held.expert_gradients) + behind_attention),
        (active.first_norm, np.ceil(held.expert_gradients) + dense),
    ):
        alive = active.checkpoint * recomputed + active.layer * kept + own
        yield items_at(
            moment,
            "backward",
            parameters=held.parameters,
            gradients=layer_gradients(moment, layers_above, fresh),
            activations=alive + moment.others_activations + moment.constant_activations,
            logits=NOTHING,
            communication=reduced + moment.buckets + moment.accumulated,
            layer=layer,
        )
