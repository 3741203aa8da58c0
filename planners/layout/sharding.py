"""Who holds what: the mesh, the stages and every weight's part, for people and launch files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planners.architecture import Split, Weight
from planners.layout.candidates import Candidates, IntArray
from planners.layout.experts import expert_tensor_ranks
from planners.memory.job import BlockWeights, Job
from planners.memory.stages import StageRows, all_stages
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
            expert_parallel=int(one.expert_parallel[0]),
            expert_tensor_parallel=int(expert_tensor_ranks(one, job)[0]),
        ),
        stages=tuple(
            ShardedStage(
                stage=int(rows.stage[row, 0]),
                layers=(int(rows.first_layer[row, 0]), int(rows.first_layer[row, 0] + rows.layers[row, 0]) - 1),
                chunks=_chunks(rows, row, int(one.virtual_pipeline[0])),
                embedding=bool(rows.has_embedding[row, 0]),
                head=bool(rows.has_head[row, 0]),
            )
            for row in range(rows.stage.size)
        ),
        weights=_weights(
            job, rows, _shard_layout(one, job), framework_policy(job.profile.name, int(one.zero_stage[0]))
        ),
    )


def _chunks(rows: StageRows, row: int, virtual_pipeline: int) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each run of layers of a stage.

    Chunk after chunk goes through all stages; a rule sees to it that every chunk has as many layers
    (`stages_are_even`). Source: Megatron-LM, megatron/core/transformer/transformer_layer.py,
    get_transformer_layer_offset.
    """
    if virtual_pipeline == 1:
        first = int(rows.first_layer[row, 0])
        return ((first, first + int(rows.layers[row, 0]) - 1),)
    of_chunk = int(rows.layers[row, 0]) // virtual_pipeline
    firsts = [(chunk * rows.stage.size + int(rows.stage[row, 0])) * of_chunk for chunk in range(virtual_pipeline)]
    return tuple((first, first + of_chunk - 1) for first in firsts)


def _shard_layout(one: Candidates, job: Job) -> ShardLayout:
    """Return the degrees of the first layout; the table shows shapes before ZeRO or FSDP cuts them."""
    return ShardLayout(
        tensor_parallel=int(one.tensor_parallel[0]),
        replicas=int(one.data_parallel[0] * one.context_parallel[0]),
        expert_parallel=int(one.expert_parallel[0]),
        expert_tensor_parallel=int(expert_tensor_ranks(one, job)[0]),
    )


def _weights(job: Job, rows: StageRows, layout: ShardLayout, policy: ShardingPolicy) -> tuple[ShardedWeight, ...]:
    """Return every kind of weight once, with how many there are; names have `*` for layer and expert."""
    copies: dict[tuple[str, tuple[int, ...]], int] = {}
    on_stages: dict[tuple[str, tuple[int, ...]], IntArray] = {}
    first: dict[tuple[str, tuple[int, ...]], Weight] = {}
    for part, blocks in _parts_on_stages(job, rows):
        for weight in (*part.frozen, *part.trainable):
            key = (weight.name.format(layer="*", expert="*"), weight.shape)
            first.setdefault(key, weight)
            copies[key] = copies.get(key, 0) + part.block.repeats * weight.tensors
            held = blocks + _tied_copies(weight, part, job, rows)
            on_stages[key] = on_stages.get(key, np.zeros_like(held)) + held * weight.tensors
    return tuple(
        ShardedWeight(
            name=name,
            shape=shape,
            split=str(first[name, shape].split),
            axis=first[name, shape].dim,
            local_shape=checkpoint_tensor(first[name, shape], layout, policy),
            copies=count,
            stage_copies=tuple(on_stages[name, shape].tolist()),
        )
        for (name, shape), count in copies.items()
    )


def _parts_on_stages(job: Job, rows: StageRows) -> Iterator[tuple[BlockWeights, IntArray]]:
    """Yield each part of the model with how many of its blocks each stage has."""
    yield job.embedding, rows.has_embedding[:, 0].astype(np.int64)
    for part, counts in zip(job.layers, rows.layers_of_kind, strict=True):
        yield part, counts[:, 0]
    yield job.head, rows.has_head[:, 0].astype(np.int64)


def _tied_copies(weight: Weight, part: BlockWeights, job: Job, rows: StageRows) -> IntArray:
    """Return 1 for each stage that holds the embedding's matrix again, for a tied head."""
    is_tied = part is job.embedding and job.model.tied_head and weight.split is Split.VOCABULARY
    again = rows.has_head & ~rows.has_embedding & np.bool_(is_tied)
    return again[:, 0].astype(np.int64)
