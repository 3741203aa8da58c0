"""How the engine shares blocks among layers that cache unlike: groups of as many layers, one tensor for each place.

Layers of one kind form a bucket; buckets are cut into groups of equal size, and the
layers that stand at the same place of their groups share a tensor, whose blocks the
groups draw from. It is read from the layers that run, not from the plan.

Source: vllm/v1/core/kv_cache_utils.py, get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size,
get_kv_cache_config_from_groups (one tensor a place; layers of a pipeline's stage alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.ground.errors import NotYetAvailable

# A smallest bucket sets the groups' size, unless the largest is less than this times as long.
PADDING_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayer:
    """What a layer keeps of a token: for each of `parts` tensors so many heads of so many features, and its window.

    A latent has one part, keys and values have two.
    """

    parts: int
    heads: int
    features: int
    window: int | None

    @property
    def elements(self) -> int:
        """Return the elements of one token."""
        return self.parts * self.heads * self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a layer's blocks are: its group, and the tensor it has there with a layer of every other group."""

    group: int
    tensor: int


def layer_groups(layers: Sequence[CachedLayer]) -> tuple[tuple[int, ...], ...]:
    """Return the groups, each the indices of its layers; without windows all need blocks for the same tokens.

    Raises `NotYetAvailable` for layers of unlike pages, some of which have windows.
    """
    if all(layer.window is None for layer in layers):
        return (tuple(range(len(layers))),)
    if len({layer.elements for layer in layers}) > 1:
        raise NotYetAvailable("Layers with windows beside others of wider keys are not run yet.", pointer="/model")
    buckets: dict[CachedLayer, list[int]] = {}
    for index, layer in enumerate(layers):
        buckets.setdefault(layer, []).append(index)
    lengths = [len(bucket) for bucket in buckets.values()]
    size = max(lengths) if max(lengths) < PADDING_RATIO * min(lengths) else min(lengths)
    groups: list[tuple[int, ...]] = []
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        groups += [tuple(bucket[first::count]) for first in range(count)]
    return tuple(groups)


def places(groups: Sequence[Sequence[int]], stage: range) -> dict[int, Place]:
    """Return the place of each of a stage's layers; those of other stages have none here."""
    found: dict[int, Place] = {}
    for number, group in enumerate(groups):
        own = (layer for layer in group if layer in stage)
        found |= {layer: Place(group=number, tensor=tensor) for tensor, layer in enumerate(own)}
    return found
