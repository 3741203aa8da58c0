"""Who holds what: the mesh, the stages and every weight's part, for people and launch files."""

from __future__ import annotations

from planners.architecture import Weight
from planners.layout.candidates import Candidates
from planners.layout.experts import expert_tensor_ranks
from planners.memory.job import Job
from planners.memory.stages import all_stages
from planners.plans import Mesh, ShardedStage, ShardedWeight, Sharding
from planners.sharding import ShardingPolicy, ShardLayout, framework_policy
from planners.sharding.weights import checkpoint_tensor

MESH_ORDER = ("pipeline", "data", "context", "tensor")


def sharding_of(layouts: Candidates, index: int, job: Job) -> Sharding:
    """Return mesh, stages and weights of one layout; the last mesh axis is innermost in a node."""
    one = layouts.take([index])
    rows = all_stages(one, job.model, job.global_batch_size, rule=job.profile.can.stage_rule)
    return Sharding(
        mesh=Mesh(
            order=MESH_ORDER,
            shape=(
                int(one.pipeline_parallel[0]),
                int(one.data_parallel[0]),
                int(one.context_parallel[0]),
                int(one.tensor_parallel[0]),
            ),
        ),
        stages=tuple(
            ShardedStage(
                stage=int(rows.stage[row, 0]),
                layers=(int(rows.first_layer[row, 0]), int(rows.first_layer[row, 0] + rows.layers[row, 0]) - 1),
                embedding=bool(rows.has_embedding[row, 0]),
                head=bool(rows.has_head[row, 0]),
            )
            for row in range(rows.stage.size)
        ),
        weights=_weights(job, _shard_layout(one, job), framework_policy(job.profile.name, int(one.zero_stage[0]))),
    )


def _shard_layout(one: Candidates, job: Job) -> ShardLayout:
    """Return the degrees of the first layout; the table shows shapes before ZeRO or FSDP cuts them."""
    return ShardLayout(
        tensor_parallel=int(one.tensor_parallel[0]),
        replicas=int(one.data_parallel[0] * one.context_parallel[0]),
        expert_parallel=int(one.expert_parallel[0]),
        expert_tensor_parallel=int(expert_tensor_ranks(one, job)[0]),
    )


def _weights(job: Job, layout: ShardLayout, policy: ShardingPolicy) -> tuple[ShardedWeight, ...]:
    """Return every kind of weight once, with how many there are; names have `*` for layer and expert."""
    copies: dict[tuple[str, tuple[int, ...]], int] = {}
    first: dict[tuple[str, tuple[int, ...]], Weight] = {}
    for part in job.parts:
        for weight in (*part.frozen, *part.trainable):
            key = (weight.name.format(layer="*", expert="*"), weight.shape)
            first.setdefault(key, weight)
            copies[key] = copies.get(key, 0) + part.block.repeats * weight.tensors
    return tuple(
        ShardedWeight(
            name=name,
            shape=shape,
            split=str(first[name, shape].split),
            axis=first[name, shape].dim,
            local_shape=checkpoint_tensor(first[name, shape], layout, policy),
            copies=count,
        )
        for (name, shape), count in copies.items()
    )
