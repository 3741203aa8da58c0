"""How a model's ranks are arranged: the degrees of parallelism, and the two meshes that follow from them.

Legend: tp tensor, ep expert, etp expert tensor, pp pipeline parallel degree.
Dense weights and experts are divided over the same ranks in two ways. A stage's
ranks count the tensor axis fastest, then the shard axis, then the replicas; for
experts the expert tensor axis fastest, then the expert axis, then what is left of
the shard axis, then the replicas.

Source: Megatron-LM, core/parallel_state.py (order "tp-cp-ep-dp-pp"); torchtitan,
distributed/parallel_dims.py ("dp_replicate", "dp_shard_in_ep", "ep", "tp").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The degrees that divide one kind of weight over a stage's ranks; the first is counted fastest."""

    tensor: int
    expert: int
    shard: int
    replicas: int

    @property
    def ranks(self) -> int:
        """Return the ranks of the stage."""
        return self.tensor * self.expert * self.shard * self.replicas

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Return the tensor, expert and shard coordinate of a rank of the stage."""
        rest, tensor = divmod(rank, self.tensor)
        rest, expert = divmod(rest, self.expert)
        return tensor, expert, rest % self.shard

    def all_coordinates(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the tensor, expert and shard coordinate of every rank of the stage."""
        rest, tensor = np.divmod(np.arange(self.ranks), self.tensor)
        rest, expert = np.divmod(rest, self.expert)
        return tensor, expert, rest % self.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """The degrees that divide a model's weights.

    `shard_ranks` is the ZeRO or FSDP degree of the state that is asked for (1
    where it is not divided), context parallelism counted in where the stack shards
    over it too. `replicas` repeat all that. `expert_parallel` deals whole experts
    out and `expert_tensor_parallel` divides each of them (None: as the stack does
    unless told otherwise). `stage_layers` are the layers of each pipeline stage
    where they are not dealt out as the stack does. `is_divided` is false where the
    state that is asked for lies whole on every rank, experts' too.
    """

    tensor_parallel: int = 1
    shard_ranks: int = 1
    replicas: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    stage_layers: tuple[int, ...] | None = None
    is_divided: bool = True

    def __post_init__(self) -> None:
        """Raise `InvalidQuestion` for a degree below one, or stages that contradict the pipeline's degree."""
        degrees = {
            "tensor_parallel": self.tensor_parallel,
            "shard_ranks": self.shard_ranks,
            "replicas": self.replicas,
            "expert_parallel": self.expert_parallel,
            "expert_tensor_parallel": self.expert_tensor_parallel,
            "pipeline_parallel": self.pipeline_parallel,
        }
        for name, degree in degrees.items():
            if degree is not None and degree < 1:
                raise InvalidQuestion(f"{name} is {degree}; a degree is at least 1.", pointer=f"/layout/{name}")
        if self.stage_layers is not None and len(self.stage_layers) != self.pipeline_parallel:
            raise InvalidQuestion(
                f"stage_layers names {len(self.stage_layers)} stages, pipeline_parallel is {self.pipeline_parallel}.",
                pointer="/layout/stage_layers",
            )

    @property
    def ranks_per_stage(self) -> int:
        """Return how many ranks each pipeline stage has."""
        return self.tensor_parallel * self.shard_ranks * self.replicas

    @property
    def ranks(self) -> int:
        """Return all ranks; those of one stage follow one another."""
        return self.ranks_per_stage * self.pipeline_parallel

    @property
    def dense_mesh(self) -> Mesh:
        """Return how weights that are no expert's are divided."""
        return Mesh(tensor=self.tensor_parallel, expert=1, shard=self.shard_ranks, replicas=self.replicas)

    def expert_mesh(self, expert_tensor_parallel: int) -> Mesh:
        """Return how experts are divided: over the same ranks, the expert axis taken out of the shard axis.

        Where a stage has more expert ranks than ranks of one replica, the axis goes
        on into the replicas. Raises `ImpossibleLayout` where neither divides.
        """
        own = self.expert_parallel * expert_tensor_parallel
        group = self.tensor_parallel * self.shard_ranks
        if not self.is_divided and self.ranks_per_stage % own == 0:
            shard, replicas = 1, self.ranks_per_stage // own
        elif group % own == 0:
            shard, replicas = group // own, self.replicas
        elif own % group == 0 and self.ranks_per_stage % own == 0:
            shard, replicas = 1, self.ranks_per_stage // own
        else:
            raise ImpossibleLayout(
                f"expert_parallel {self.expert_parallel} x {expert_tensor_parallel} tensor-parallel ranks of each "
                f"expert divide neither the {group} ranks of a replica nor the {self.ranks_per_stage} of a stage.",
                rule="expert-parallel-divides",
                pointer="/layout/expert_parallel",
            )
        return Mesh(tensor=expert_tensor_parallel, expert=self.expert_parallel, shard=shard, replicas=replicas)
