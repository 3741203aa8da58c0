"""Who holds what: the mesh, the stages and every weight's part, for people and launch files."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Split, Weight
from plimsoll.planners.derived import Derived
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, IntArray
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.layouts.stages import StageRows, all_stages, pipeline_of
from plimsoll.planners.plans import Mesh, ShardedStage, ShardedWeight, Sharding
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from plimsoll.planners.sharding.weights import checkpoint_tensor

MESH_ORDER = ("pipeline", "data", "context", "tensor")
# Of the models and layouts that are asked for again and again with another batch, sequence or budget.
MOST_KEPT_TABLES = 256


def sharding_of(layouts: Candidates, index: int, job: Job, derived: Derived) -> Sharding:
    """Return mesh, stages and weights of one layout; the last mesh axis is innermost in a node.

    `derived` works out the tables of stages and weights.
    """
    one = layouts.take([index])
    return Sharding(
        mesh=_mesh(one, job),
        stages=derived.part("plan.sharding.stages", lambda: _stages(one, job), otherwise=()),
        weights=derived.part("plan.sharding.weights", lambda: _sharded_weights(one, job), otherwise=()),
    )


def _mesh(one: Candidates, job: Job) -> Mesh:
    return Mesh(
        order=MESH_ORDER,
        shape=(
            int(one.pipeline_parallel[0]),
            int(one.data_parallel[0]),
            int(one.context_parallel[0]),
            int(one.tensor_parallel[0]),
        ),
        expert_parallel=int(one.expert_parallel[0]),
        expert_tensor_parallel=int(expert_tensor_ranks(one, job)[0]),
    )


def _rows(one: Candidates, job: Job) -> StageRows:
    return all_stages(one, job)


def _stages(one: Candidates, job: Job) -> tuple[ShardedStage, ...]:
    pipeline = pipeline_of(one, 0, job)
    return tuple(
        ShardedStage(
            stage=stage,
            layers=pipeline.span(stage),
            chunks=pipeline.spans(stage),
            embedding=stage == 0,
            head=pipeline.has_head(stage),
        )
        for stage in range(pipeline.degree)
    )


def _sharded_weights(one: Candidates, job: Job) -> tuple[ShardedWeight, ...]:
    parts = _parts_on_stages(job, _rows(one, job))
    return _weights(parts, _shard_layout(one, job), job.profile.sharding_policy(int(one.zero_stage[0])))


def _shard_layout(one: Candidates, job: Job) -> ShardLayout:
    """Return the degrees of the first layout; the table shows shapes before ZeRO or FSDP cuts them."""
    return ShardLayout(
        tensor_parallel=int(one.tensor_parallel[0]),
        replicas=int(one.data_parallel[0] * one.context_parallel[0]),
        expert_parallel=int(one.expert_parallel[0]),
        expert_tensor_parallel=int(expert_tensor_ranks(one, job)[0]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartOnStages:
    """A part of the model, how many of its blocks each stage has, and which holds a tied embedding again."""

    part: BlockWeights
    blocks: tuple[int, ...]
    tied_copies: tuple[int, ...] | None = None

    def copies_of(self, weight: Weight) -> list[int]:
        """Return how many tensors of a weight of this part each stage has."""
        again = self.tied_copies if weight.split is Split.VOCABULARY else None
        held = self.blocks if again is None else [sum(both) for both in zip(self.blocks, again, strict=True)]
        return [count * weight.tensors for count in held]


@functools.lru_cache(maxsize=MOST_KEPT_TABLES)
def _weights(
    parts: tuple[_PartOnStages, ...], layout: ShardLayout, policy: ShardingPolicy
) -> tuple[ShardedWeight, ...]:
    """Return every kind of weight once, with how many there are; names have `*` for layer and expert."""
    copies: dict[tuple[str, tuple[int, ...]], int] = {}
    on_stages: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    first: dict[tuple[str, tuple[int, ...]], Weight] = {}
    for held in parts:
        for weight in (*held.part.frozen, *held.part.trainable):
            key = (weight.name.format(layer="*", expert="*"), weight.shape)
            first.setdefault(key, weight)
            copies[key] = copies.get(key, 0) + held.part.block.repeats * weight.tensors
            before = on_stages.get(key, [0] * len(held.blocks))
            on_stages[key] = [sum(both) for both in zip(before, held.copies_of(weight), strict=True)]
    return tuple(
        ShardedWeight(
            name=name,
            shape=shape,
            split=str(first[name, shape].split),
            axis=first[name, shape].dim,
            local_shape=checkpoint_tensor(first[name, shape], layout, policy),
            copies=count,
            stage_copies=tuple(on_stages[name, shape]),
        )
        for (name, shape), count in copies.items()
    )


def _parts_on_stages(job: Job, rows: StageRows) -> tuple[_PartOnStages, ...]:
    """Return the parts of the model with what each stage has of them."""
    tied = (rows.has_head & np.bool_(job.model.tied_head)).astype(np.int64)
    again = np.where(rows.has_embedding, 0, tied + rows.has_multi_token)
    joints = rows.has_multi_token * np.int64(job.model.multi_token_layers)
    return (
        _PartOnStages(part=job.embedding, blocks=_counts(rows.has_embedding), tied_copies=_counts(again)),
        *(
            _PartOnStages(part=part, blocks=_counts(counts))
            for part, counts in zip(job.layers, rows.layers_of_kind, strict=True)
        ),
        *([_PartOnStages(part=job.multi_token, blocks=_counts(joints))] if job.multi_token else ()),
        _PartOnStages(part=job.head, blocks=_counts(rows.has_head)),
    )


def _counts(of_stages: IntArray | BoolArray) -> tuple[int, ...]:
    """Return the whole numbers of one layout's stages."""
    return tuple(of_stages[:, 0].astype(np.int64).tolist())
