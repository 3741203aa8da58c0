"""The groups of a stage's weights: dense ones, experts and buffers, each over its own mesh of the same ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from plimsoll.planners.architecture import Weight
from plimsoll.planners.sharding.cuts import Cut, LocalTensor, Whole
from plimsoll.planners.sharding.layout import IntArray, Mesh, ShardLayout
from plimsoll.planners.sharding.policy import ShardingPolicy
from plimsoll.planners.sharding.stages import StageWeights
from plimsoll.planners.sharding.weights import (
    LocalWeight,
    expert_boundaries,
    expert_span,
    is_expert,
    local_weight,
    tensor_boundaries,
    tensor_copies,
)


class Group(StrEnum):
    """What shares a mesh and, where a stack has one, a flat buffer; buffers are no parameters and never cut."""

    DENSE = "dense"
    EXPERT = "expert"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What each rank of a box of coordinates holds of one tensor.

    A tensor is named as in the checkpoint, with `*` for the expert where the stack
    holds a rank's experts as one, and with the expert's index behind where the
    checkpoint does and the stack does not. The box is `stage` and ranges of the
    tensor, expert and shard axes of the weight's mesh; `replicas` ranks of the stage
    hold the very same. `elements` are the model's, `stored_elements` what memory is
    taken for, padding included.
    """

    name: str
    stage: int
    group: Group
    tensor_ranks: range
    expert_ranks: range
    shard_ranks: range
    local_shape: tuple[int, ...]
    elements: int
    stored_elements: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Neighbouring tensor and expert ranks that hold alike shapes."""

    tensor_ranks: range
    expert_ranks: range


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """The weights of one group on one stage."""

    stage: StageWeights
    mesh: Mesh
    policy: ShardingPolicy
    group: Group

    @property
    def cut(self) -> Cut:
        """Return how the stack cuts; a single rank's tensors are left as they are."""
        return cut_of(self.group, self.mesh, self.policy)

    @property
    def is_whole(self) -> bool:
        """Return whether all shard ranks hold the same."""
        return isinstance(self.cut, Whole)

    def kinds(self) -> Iterator[tuple[Weight, int]]:
        """Yield the group's kinds of weights with the layers that have each."""
        return ((weight, count) for weight, count in self.stage.kinds() if group_of(weight) is self.group)

    def boxes(self) -> Iterator[Box]:
        """Yield boxes that cover the tensor and the expert axis."""
        tensor: set[int] = set()
        expert: set[int] = set()
        for weight, _ in self.kinds():
            tensor |= tensor_boundaries(weight, self.mesh, self.policy)
            expert |= expert_boundaries(weight, self.mesh)
        for tensor_ranks in _spans(tensor, self.mesh.tensor):
            for expert_ranks in _spans(expert, self.mesh.expert):
                yield Box(tensor_ranks=tensor_ranks, expert_ranks=expert_ranks)

    def local(self, weight: Weight, box: Box) -> LocalWeight:
        """Return what of a weight stands on each rank of a box."""
        return local_weight(
            weight,
            self.mesh,
            self.policy,
            tensor_rank=box.tensor_ranks.start,
            expert_rank=box.expert_ranks.start,
        )

    def tensors(self, box: Box) -> list[tuple[str, Weight, int, LocalTensor]]:
        """Return (name, weight, place among the rank's experts, tensor) of all that a rank holds, in order."""
        held = {weight: self.local(weight, box) for weight, _ in self.kinds()}
        return [
            (name, weight, place, held[weight].tensor)
            for name, weight in self.stage.named()
            if group_of(weight) is self.group
            for place in range(held[weight].tensors)
        ]

    def shards(self, box: Box) -> Iterator[Shard]:
        """Yield every tensor's shards in a box, expert rank by expert rank where each has a name of its own."""
        tensors = self.tensors(box)
        pieces = self.cut.pieces([tensor for _, _, _, tensor in tensors], self.mesh.shard)
        replicas = {weight: self._replicas(weight) for weight, _ in self.kinds()}
        for (name, weight, place, _), parts in zip(tensors, pieces, strict=True):
            for full_name, expert_ranks in self._names(name, weight, place, box):
                for piece in parts:
                    yield Shard(
                        name=full_name,
                        stage=self.stage.index,
                        group=self.group,
                        tensor_ranks=box.tensor_ranks,
                        expert_ranks=expert_ranks,
                        shard_ranks=piece.ranks,
                        local_shape=piece.shape,
                        elements=piece.elements,
                        stored_elements=piece.stored_elements,
                        replicas=replicas[weight],
                    )

    def totals(self) -> tuple[IntArray, IntArray]:
        """Return the model's and the stored elements by [expert, tensor, shard] coordinate."""
        shape = (self.mesh.expert, self.mesh.tensor, self.mesh.shard)
        both = (np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
        for box in self.boxes():
            if self.cut.is_by_tensor:
                held = [(self.local(weight, box), count) for weight, count in self.kinds()]
                counted = [(local.tensor, local.tensors * count) for local, count in held]
            else:
                counted = [(tensor, 1) for _, _, _, tensor in self.tensors(box)]
            for on_axes, on_ranks in zip(both, self.cut.totals(counted, self.mesh.shard), strict=True):
                on_axes[
                    box.expert_ranks.start : box.expert_ranks.stop, box.tensor_ranks.start : box.tensor_ranks.stop
                ] = on_ranks
        return both

    def _names(self, name: str, weight: Weight, place: int, box: Box) -> Iterator[tuple[str, range]]:
        """Yield the names a tensor has on the expert ranks of a box."""
        if self.group is not Group.EXPERT:
            yield name, box.expert_ranks
        elif self.policy.stacks_experts:
            yield name.replace("{expert}", "*"), box.expert_ranks
        else:
            for rank in box.expert_ranks:
                expert = expert_span(weight.experts, self.mesh.expert, rank, self.policy)[0] + place
                own = name.replace("{expert}", str(expert)) if "{expert}" in name else f"{name}.{expert}"
                yield own, range(rank, rank + 1)

    def _replicas(self, weight: Weight) -> int:
        """Return how many ranks hold the very same shard; of joined projections the part held least often counts."""
        copies = min(copies for _, copies in tensor_copies(weight, self.mesh.tensor, self.policy))
        return self.mesh.replicas * copies * (self.mesh.shard if self.is_whole else 1)


def group_of(weight: Weight) -> Group:
    """Return the group a weight belongs to."""
    if weight.is_buffer:
        return Group.BUFFER
    return Group.EXPERT if is_expert(weight) else Group.DENSE


def cut_of(group: Group, mesh: Mesh, policy: ShardingPolicy) -> Cut:
    """Return how a stack cuts a group's tensors over a mesh's shard ranks."""
    return policy.cut if mesh.shard > 1 and group is not Group.BUFFER else Whole()


def mesh_of(group: Group, layout: ShardLayout, policy: ShardingPolicy) -> Mesh:
    """Return how a group is divided; raises `ImpossibleLayout` where experts do not divide."""
    return policy.expert_mesh(layout) if group is Group.EXPERT else layout.dense_mesh


def weight_groups(stage: StageWeights, layout: ShardLayout, policy: ShardingPolicy) -> Iterator[WeightGroup]:
    """Yield the groups that a stage has weights of."""
    present = {group_of(weight) for weight, _ in stage.kinds()}
    for group in Group:
        if group in present:
            yield WeightGroup(stage=stage, mesh=mesh_of(group, layout, policy), policy=policy, group=group)


def _spans(boundaries: set[int], ranks: int) -> Iterator[range]:
    edges = sorted({0, ranks, *(edge for edge in boundaries if 0 < edge < ranks)})
    return (range(low, high) for low, high in itertools.pairwise(edges))
