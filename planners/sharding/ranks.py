"""Every weight's shard on every rank, each rank's totals, and the sum of them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import ModelSpec, Weight
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.sharding.cuts import Whole
from plimsoll.planners.sharding.groups import Box, Group, Shard, WeightGroup, cut_of, group_of, mesh_of, weight_groups
from plimsoll.planners.sharding.layout import IntArray, ShardLayout
from plimsoll.planners.sharding.policy import ShardingPolicy
from plimsoll.planners.sharding.stages import StageWeights, behind_the_first, stage_weights
from plimsoll.planners.sharding.weights import local_weight, tensor_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class RankElements:
    """Elements on every rank, [stages, ranks of a stage]: the model's, and with padding what is stored."""

    elements: IntArray
    stored: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRank:
    """Elements on rank 0, which stores as many as any: what does not divide goes to the first ranks.

    `whole` are those it would have if ZeRO or FSDP divided nothing, `elements` the
    model's among those it has, `stored` what memory is taken for, and `gathered` all
    shard ranks' stored parts together.
    """

    whole: int
    elements: int
    stored: int
    gathered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What all ranks store, in parts: the model once, what several ranks hold alike, and padding."""

    model: int
    tied_copy: int
    tensor_copies: int
    data_copies: int
    padding: int

    @property
    def stored(self) -> int:
        """Return the sum of the parts."""
        return self.model + self.tied_copy + self.tensor_copies + self.data_copies + self.padding


def shards(spec: ModelSpec, layout: ShardLayout, policy: ShardingPolicy) -> Iterator[Shard]:
    """Yield the shards of every tensor, stage by stage; each rank of the stage is in one box of each tensor.

    Raises `ImpossibleLayout` for degrees that the stack would refuse.
    """
    for stage in _stages(spec, layout):
        for group in weight_groups(stage, layout, policy):
            for box in group.boxes():
                yield from group.shards(box)


def rank_shards(spec: ModelSpec, layout: ShardLayout, policy: ShardingPolicy, rank: int) -> Iterator[Shard]:
    """Yield what one rank holds, group by group in the model's order; empty shards included.

    Raises `InvalidQuestion` for a rank that is not there.
    """
    if not 0 <= rank < layout.ranks:
        raise InvalidQuestion(f"rank {rank} is not one of {layout.ranks} ranks.", pointer="/rank")
    index, within = divmod(rank, layout.ranks_per_stage)
    stage = _stages(spec, layout)[index]
    for group in weight_groups(stage, layout, policy):
        tensor, expert, shard = group.mesh.coordinates(within)
        alone = Box(tensor_ranks=range(tensor, tensor + 1), expert_ranks=range(expert, expert + 1))
        yield from (held for held in group.shards(alone) if shard in held.shard_ranks)


def rank_elements(spec: ModelSpec, layout: ShardLayout, policy: ShardingPolicy) -> RankElements:
    """Return how many elements every rank holds and stores."""
    shape = (layout.pipeline_parallel, layout.ranks_per_stage)
    elements, stored = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for stage in _stages(spec, layout):
        for group in weight_groups(stage, layout, policy):
            tensor, expert, shard = group.mesh.all_coordinates()
            for total, on_axes in zip((elements, stored), group.totals(), strict=True):
                total[stage.index] += on_axes[expert, tensor, shard]
    return RankElements(elements=elements, stored=stored)


def first_rank(weights: Sequence[Weight], layout: ShardLayout, policy: ShardingPolicy) -> FirstRank:
    """Return what rank 0 has of some weights, one layer's or any others.

    A flat buffer is taken to hold just these weights. Raises `ImpossibleLayout` for
    degrees that the stack would refuse.
    """
    whole = elements = stored = gathered = 0
    for group in Group:
        own = [weight for weight in weights if group_of(weight) is group]
        if own:
            mesh = mesh_of(group, layout, policy)
            held = [local_weight(weight, mesh, policy) for weight in own]
            cut = cut_of(group, mesh, policy)
            counts = cut.first_rank([(local.tensor, local.tensors) for local in held], mesh.shard)
            whole += sum(local.stored_elements for local in held)
            elements, stored = elements + counts[0], stored + counts[1]
            gathered += counts[1] * (1 if isinstance(cut, Whole) else mesh.shard)
    return FirstRank(whole=whole, elements=elements, stored=stored, gathered=gathered)


def account(spec: ModelSpec, layout: ShardLayout, policy: ShardingPolicy) -> Account:
    """Return what all ranks store together, and why it is more than the model.

    Copies follow from the degrees, weight by weight; padding is what is left of
    the stored elements.
    """
    model = tied = tensor_held = held = stored = 0
    for stage in _stages(spec, layout):
        model += sum(weight.elements * count for weight, count in stage.kinds())
        tied += sum(weight.elements for weight in stage.tied_copy)
        for group in weight_groups(stage, layout, policy):
            on_tensor_ranks = _elements_of_tensor_ranks(group)
            tensor_held += on_tensor_ranks
            held += on_tensor_ranks * group.mesh.replicas * (group.mesh.shard if group.is_whole else 1)
            stored += int(group.totals()[1].sum()) * group.mesh.replicas
    return Account(
        model=model - tied,
        tied_copy=tied,
        tensor_copies=tensor_held - model,
        data_copies=held - tensor_held,
        padding=stored - held,
    )


def _elements_of_tensor_ranks(group: WeightGroup) -> int:
    """Return the elements that all tensor and expert ranks of one shard group hold, with those held alike."""
    return sum(
        count * weight.tensors * elements * copies
        for weight, count in group.kinds()
        for elements, copies in tensor_copies(weight, group.mesh.tensor, group.policy)
    )


def _stages(spec: ModelSpec, layout: ShardLayout) -> tuple[StageWeights, ...]:
    return stage_weights(spec, layout.stage_layers or behind_the_first(spec.num_layers, layout.pipeline_parallel))
