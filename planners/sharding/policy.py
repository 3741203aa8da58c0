"""What stacks and engines do with weights that do not divide, and how ZeRO or FSDP cuts what is left."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.sharding.cuts import Cut
from plimsoll.planners.sharding.layout import Mesh, ShardLayout


class KeyValueHeads(StrEnum):
    """What becomes of key-value heads (or state groups) fewer than the tensor-parallel ranks.

    `replicated` gives each rank one whole head that several ranks hold; `cut` divides
    the projection's rows evenly, through the heads, and gathers its outputs;
    `refused` raises.
    """

    REPLICATED = "replicated"
    CUT = "cut"
    REFUSED = "refused"


class ExpertTensorDegree(StrEnum):
    """By how many tensor-parallel ranks each expert is divided, unless a layout says.

    `tensor` is the dense weights' degree, `tensor_alone` that unless there is
    expert parallelism (then whole experts), `all_ranks` all ranks of a stage unless
    there is expert parallelism.
    """

    TENSOR = "tensor"
    TENSOR_ALONE = "tensor_alone"
    ALL_RANKS = "all_ranks"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardingPolicy:
    """How a stack places weights in one ZeRO stage; compared by identity (`sharding_policy` makes one of each).

    The vocabulary is padded to a multiple of `vocabulary_multiple` (times the
    tensor-parallel degree where `pads_vocabulary_by_degree`, or, with
    `pads_uneven_vocabulary`, where it would not divide otherwise) and divided evenly, or,
    when that is 0, cut in ceilings, the last ranks' parts short or empty. A stack
    that `stacks_experts` holds a rank's experts as one tensor with the expert in
    front (transformers 5.23 does, and whatever wraps its models), others one tensor
    each. `cuts_experts_second` divides such a tensor's
    second dimension where there are more ranks than experts.
    """

    key_value_heads: KeyValueHeads
    cut: Cut
    expert_tensor_degree: ExpertTensorDegree = ExpertTensorDegree.TENSOR
    vocabulary_multiple: int = 0
    pads_vocabulary_by_degree: bool = False
    pads_uneven_vocabulary: bool = False
    stacks_experts: bool = False
    cuts_experts_second: bool = False
    deals_experts_unevenly: bool = False

    def vocabulary_rows(self, rows: int, tensor_parallel: int) -> int:
        """Return the rows of an embedding or head on the rank that has most, padding included.

        Raises `ImpossibleLayout` where the padded vocabulary does not divide.
        """
        if not self.vocabulary_multiple:
            return -(-rows // tensor_parallel)
        multiple = self.vocabulary_multiple * (tensor_parallel if self.pads_vocabulary_by_degree else 1)
        padded = -(-rows // multiple) * multiple
        if padded % tensor_parallel and self.pads_uneven_vocabulary:
            padded = -(-rows // (multiple * tensor_parallel)) * multiple * tensor_parallel
        if padded % tensor_parallel:
            raise ImpossibleLayout(
                f"{padded} rows of the padded vocabulary do not divide over tensor_parallel {tensor_parallel}.",
                rule="tensor-parallel-divides",
                pointer="/layout/tensor_parallel",
            )
        return padded // tensor_parallel

    def expert_mesh(self, layout: ShardLayout) -> Mesh:
        """Return how this stack divides experts over a stage's ranks."""
        degree = layout.expert_tensor_parallel
        if degree is None:
            whole = layout.expert_parallel > 1 and self.expert_tensor_degree is not ExpertTensorDegree.TENSOR
            everyone = self.expert_tensor_degree is ExpertTensorDegree.ALL_RANKS
            degree = 1 if whole else layout.ranks_per_stage if everyone else layout.tensor_parallel
        return layout.expert_mesh(degree)

    def expert_cut_dim(self, experts: int, mesh: Mesh) -> int:
        """Return the dimension of a stack of experts that is divided over the shard ranks."""
        return 1 if self.cuts_experts_second and mesh.shard * mesh.expert > experts else 0


@functools.cache
def sharding_policy(**fields: Any) -> ShardingPolicy:
    """Return the policy of these fields, one and the same for all stacks that shard alike.

    What is worked out by it is kept, and found again for each of them.
    """
    return ShardingPolicy(**fields)
