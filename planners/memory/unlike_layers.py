"""The layers of a model of several kinds, each at its own worst places, between the layers that lie around it.

Where layers are gathered one at a time, what is live beside a layer is the layer gathered ahead and the one that is
reduced, which of unlike layers are not as large as the largest: of DeepSeek V3 a dense layer's weights are larger
than a rank's part of a mixture, and a mixture's activations larger than a dense layer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.layouts.candidates import ALL_LAYERS, BoolArray, FloatArray
from plimsoll.planners.memory.activity import Activity, activity
from plimsoll.planners.memory.holdings import Holdings, holdings
from plimsoll.planners.memory.items import NOTHING, Items
from plimsoll.planners.memory.step_context import Neighbours, StepContext

# What of a stage's account is one layer's: the others are sums, or the same for every layer.
HELD_OF_LAYER = (
    "layer_elements", "layer_frozen", "layer_padded", "last_matrix_elements", "feed_forward_elements",
    "behind_attention_elements", "expert_elements", "expert_padded", "expert_gradients", "last_expert_elements",
    "dequantized",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeKind:
    """The step as a kind of layer sees it, with the highest two and the lowest two `layers` of that kind.

    `layer_bytes` is what one of them keeps, where `step` has what those below keep on average. `is_apart` says of
    which layouts this holds.
    """

    step: StepContext
    layers: FloatArray
    layer_bytes: FloatArray
    is_apart: BoolArray

    def where_apart(self, items: Items) -> Items:
        """Return the events of layouts whose kinds of layers stand apart."""
        return only_where(items, self.is_apart)

    @property
    def of_highest(self) -> StepContext:
        """Return the step as the highest of the layers sees it, itself among those that are kept."""
        around = self.step.neighbours
        if around is None:
            raise ValueError("A kind of layer stands between other layers.")
        return replace(
            self.step,
            active=replace(self.step.active, layer=self.layer_bytes),
            neighbours=Neighbours(
                ahead_buffer=around.ahead_buffer[:1],
                above_padded=around.above_padded[:1],
                above_without_experts=around.above_without_experts[:1],
            ),
        )


def stands_alone(step: StepContext) -> BoolArray:
    """Return where layers not all of one kind are gathered one at a time in one stage, and recomputed all or none.

    DeepSpeed gathers by numbers of elements, whatever layers they are of.
    """
    job, layouts = step.job, step.layouts
    is_mixed = len(job.layers) > 1 and job.method == "full" and job.recompute_every is None and step.zero is None
    is_whole = (layouts.pipeline_parallel == 1) & (layouts.full_layers == ALL_LAYERS)
    result: BoolArray = step.gathered_by_layer & is_whole & np.bool_(is_mixed)
    return result


def unlike_kinds(step: StepContext) -> list[UnlikeKind]:
    """Return each kind's own view where any layout's layers stand alone, the last layer's first; else none."""
    is_apart = stands_alone(step)
    if not is_apart.any():
        return []
    return sorted(_kinds(step, is_apart), key=lambda kind: -float(kind.layers.max()))


def where_alike(items: Items, kinds: Sequence[UnlikeKind]) -> Items:
    """Return the events of layouts of which no kind of layers stands apart."""
    return only_where(items, ~kinds[0].is_apart) if kinds else items


def _kinds(step: StepContext, is_apart: BoolArray) -> Iterator[UnlikeKind]:
    kind_of = {layer: kind for kind, part in enumerate(step.job.layers) for layer in part.block.layers}
    order = [kind_of[layer] for layer in sorted(kind_of)]
    alone = [_alone(step, kind) for kind in range(len(step.job.layers))]
    for kind, (held, active) in enumerate(alone):
        own = [place for place, each in enumerate(order) if each == kind]
        places = sorted({*own[:2], *own[-2:]}, reverse=True)
        below = [_mean_below(alone, order[:place]) for place in places]
        view = replace(
            step,
            held=replace(step.held, **{name: getattr(held, name) for name in HELD_OF_LAYER}),
            active=replace(step.active, layer=_stacked(step, below), backward=active.backward),
            neighbours=_neighbours(step, [each for each, _ in alone], order, places),
        )
        shape = step.rows.layers.shape
        layers = np.stack([np.full(shape, float(place)) for place in places])
        yield UnlikeKind(step=view, layers=layers, layer_bytes=active.layer, is_apart=is_apart)


def only_where(items: Items, chosen: BoolArray) -> Items:
    """Return the events where they are chosen, and nothing but what is always held elsewhere."""
    return replace(
        items,
        gradients=np.where(chosen, items.gradients, 0.0),
        activations=np.where(chosen, items.activations, 0.0),
        communication=np.where(chosen, items.communication, 0.0),
    )


def _alone(step: StepContext, kind: int) -> tuple[Holdings, Activity]:
    """Return the account of a model that has only the layers of that kind."""
    counts = step.rows.layers_of_kind[kind]
    rows = replace(step.rows, layers=counts, layers_of_kind=(counts,))
    job = replace(step.job, layers=(step.job.layers[kind],))
    return holdings(step.layouts, rows, job), activity(step.layouts, rows, job)


def _mean_below(alone: list[tuple[Holdings, Activity]], below: list[int]) -> FloatArray:
    """Return what one of the layers below keeps on average."""
    if not below:
        return NOTHING
    kept = [below.count(kind) * active.layer for kind, (_, active) in enumerate(alone) if kind in below]
    result: FloatArray = sum(kept, NOTHING) / len(below)
    return result


def _neighbours(step: StepContext, held: list[Holdings], order: list[int], places: list[int]) -> Neighbours:
    """Return what is gathered ahead of each place, the layer below, and what was reduced before, the layer above."""
    size = step.job.precision.compute_bytes
    buffers = [size * each.layer_padded + each.layer_frozen for each in held]
    whole = [each.layer_padded for each in held]
    apart = [each.layer_padded - each.expert_padded for each in held]

    def at(values: list[FloatArray], distance: int) -> FloatArray:
        around = (place + distance for place in places)
        return _stacked(step, [values[order[place]] if 0 <= place < len(order) else NOTHING for place in around])

    return Neighbours(ahead_buffer=at(buffers, -1), above_padded=at(whole, 1), above_without_experts=at(apart, 1))


def _stacked(step: StepContext, values: list[FloatArray]) -> FloatArray:
    """Return arrays of several places along an axis before that of the stages."""
    alike = np.stack(np.broadcast_arrays(*values))
    missing = step.rows.layers.ndim + 1 - alike.ndim
    return alike.reshape(len(values), *(1,) * missing, *alike.shape[1:])
