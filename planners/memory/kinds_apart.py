"""The layers of a model of several kinds, each at its own worst places, between the layers that lie around it.

Where layers are gathered one at a time, what is there beside a layer is the layer gathered ahead and the one that is
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
from plimsoll.planners.memory.moment import Moment, Neighbours

# What of a stage's account is one layer's: the others are sums, or the same for every layer.
HELD_OF_LAYER = (
    "layer_elements", "layer_frozen", "layer_padded", "last_matrix_elements", "feed_forward_elements",
    "behind_attention_elements", "expert_elements", "expert_padded", "expert_gradients", "last_expert_elements",
    "dequantized",
)  # fmt: skip
ACTIVE_OF_LAYER = (
    "working_set", "transient", "first_norm", "second_norm", "attention_gradients", "first_products", "last_product",
    "last_matrix", "unused", "returned", "tokens_back", "experts_product", "combine", "experts_reduced",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KindApart:
    """The step as a kind of layer sees it, with the highest two and the lowest two `layers` of that kind.

    `layer_bytes` is what one of them keeps, where `moment` has what those below keep on average. `is_apart` says of
    which layouts this holds.
    """

    moment: Moment
    layers: FloatArray
    layer_bytes: FloatArray
    is_apart: BoolArray

    def where_apart(self, items: Items) -> Items:
        """Return the moments of layouts whose kinds of layers stand apart."""
        return only_where(items, self.is_apart)

    @property
    def of_highest(self) -> Moment:
        """Return the step as the highest of the layers sees it, itself among those that are kept."""
        around = self.moment.neighbours
        if around is None:
            raise ValueError("A kind of layer stands between other layers.")
        return replace(
            self.moment,
            active=replace(self.moment.active, layer=self.layer_bytes),
            neighbours=Neighbours(
                ahead_buffer=around.ahead_buffer[:1],
                above_padded=around.above_padded[:1],
                above_without_experts=around.above_without_experts[:1],
            ),
        )


def stands_alone(moment: Moment) -> BoolArray:
    """Return where layers not all of one kind are gathered one at a time in one stage, and recomputed all or none.

    DeepSpeed gathers by numbers of elements, whatever layers they are of.
    """
    job, layouts = moment.job, moment.layouts
    is_mixed = len(job.layers) > 1 and job.method == "full" and job.recompute_every is None and moment.zero is None
    is_whole = (layouts.pipeline_parallel == 1) & (layouts.full_layers == ALL_LAYERS)
    result: BoolArray = moment.gathered_by_layer & is_whole & np.bool_(is_mixed)
    return result


def kinds_apart(moment: Moment) -> list[KindApart]:
    """Return each kind's own view where any layout's layers stand alone, the last layer's first; else none."""
    is_apart = stands_alone(moment)
    if not is_apart.any():
        return []
    return sorted(_kinds(moment, is_apart), key=lambda kind: -float(kind.layers.max()))


def where_alike(items: Items, kinds: Sequence[KindApart]) -> Items:
    """Return the moments of layouts of which no kind of layers stands apart."""
    return only_where(items, ~kinds[0].is_apart) if kinds else items


def _kinds(moment: Moment, is_apart: BoolArray) -> Iterator[KindApart]:
    kind_of = {layer: kind for kind, part in enumerate(moment.job.layers) for layer in part.block.layers}
    order = [kind_of[layer] for layer in sorted(kind_of)]
    alone = [_alone(moment, kind) for kind in range(len(moment.job.layers))]
    for kind, (held, active) in enumerate(alone):
        own = [place for place, each in enumerate(order) if each == kind]
        places = sorted({*own[:2], *own[-2:]}, reverse=True)
        below = [_mean_below(alone, order[:place]) for place in places]
        view = replace(
            moment,
            held=replace(moment.held, **{name: getattr(held, name) for name in HELD_OF_LAYER}),
            active=replace(
                moment.active,
                layer=_stacked(moment, below),
                **{name: getattr(active, name) for name in ACTIVE_OF_LAYER},
            ),
            neighbours=_neighbours(moment, [each for each, _ in alone], order, places),
        )
        shape = moment.rows.layers.shape
        layers = np.stack([np.full(shape, float(place)) for place in places])
        yield KindApart(moment=view, layers=layers, layer_bytes=active.layer, is_apart=is_apart)


def only_where(items: Items, chosen: BoolArray) -> Items:
    """Return the moments where they are chosen, and nothing but what is always held elsewhere."""
    return replace(
        items,
        gradients=np.where(chosen, items.gradients, 0.0),
        activations=np.where(chosen, items.activations, 0.0),
        communication=np.where(chosen, items.communication, 0.0),
    )


def _alone(moment: Moment, kind: int) -> tuple[Holdings, Activity]:
    """Return the account of a model that has only the layers of that kind."""
    counts = moment.rows.layers_of_kind[kind]
    rows = replace(moment.rows, layers=counts, layers_of_kind=(counts,))
    job = replace(moment.job, layers=(moment.job.layers[kind],))
    return holdings(moment.layouts, rows, job), activity(moment.layouts, rows, job)


def _mean_below(alone: list[tuple[Holdings, Activity]], below: list[int]) -> FloatArray:
    """Return what one of the layers below keeps on average."""
    if not below:
        return NOTHING
    kept = [below.count(kind) * active.layer for kind, (_, active) in enumerate(alone) if kind in below]
    result: FloatArray = sum(kept, NOTHING) / len(below)
    return result


def _neighbours(moment: Moment, held: list[Holdings], order: list[int], places: list[int]) -> Neighbours:
    """Return what is gathered ahead of each place, the layer below, and what was reduced before, the layer above."""
    size = moment.job.precision.compute_bytes
    buffers = [size * each.layer_padded + each.layer_frozen for each in held]
    whole = [each.layer_padded for each in held]
    apart = [each.layer_padded - each.expert_padded for each in held]

    def at(values: list[FloatArray], distance: int) -> FloatArray:
        around = (place + distance for place in places)
        return _stacked(moment, [values[order[place]] if 0 <= place < len(order) else NOTHING for place in around])

    return Neighbours(ahead_buffer=at(buffers, -1), above_padded=at(whole, 1), above_without_experts=at(apart, 1))


def _stacked(moment: Moment, values: list[FloatArray]) -> FloatArray:
    """Return arrays of several places along an axis before that of the stages."""
    alike = np.stack(np.broadcast_arrays(*values))
    missing = moment.rows.layers.ndim + 1 - alike.ndim
    return alike.reshape(len(values), *(1,) * missing, *alike.shape[1:])
