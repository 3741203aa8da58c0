"""Pipeline stages: which layers a stage has and how many micro-batches it keeps.

1F1B keeps min(p − i, m) micro-batches on stage i (Narayanan et al. 2021,
arXiv:2104.04473); the interleaved schedule with v chunks a stage keeps
2·(p − i − 1) + (v − 1)·p + 1 chunks, which on the first stage is
1 + (p − 1)/(p·v) times as much (Korthikanti et al. 2022, arXiv:2205.05198).
GPipe runs all forward passes first and so keeps every micro-batch (Huang et al.
2019, section 2.3, arXiv:1811.06965). PipeDream keeps what 1F1B does, and a version
of the weights for each (Narayanan et al. 2019, section 3.3, doi:10.1145/3341301.3359646).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planners.architecture import ModelSpec, OperationKind
from planners.identity import Same
from planners.layout.candidates import BoolArray, Candidates, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The stages whose memory is asked for, along a first axis before those of the layouts.

    A layout with fewer stages than others has some of its own more than once.
    """

    stage: IntArray
    first_layer: IntArray
    layers: IntArray
    layers_of_kind: tuple[IntArray, ...]
    has_embedding: BoolArray
    has_head: BoolArray
    in_flight: FloatArray


def stage_layers(pipeline_parallel: IntArray, stage: IntArray, num_layers: int) -> tuple[IntArray, IntArray]:
    """Return the first layer and the number of layers of each stage.

    What does not divide goes one each to the stages after the first, which has
    the embedding and the most micro-batches to keep already.
    """
    base, extra = np.divmod(num_layers, pipeline_parallel)
    first = stage * base + np.minimum(np.maximum(stage - 1, 0), extra)
    count = base + ((stage >= 1) & (stage <= extra))
    return first, count


def compute_weighted_stages(model: ModelSpec, pipeline_parallel: int) -> tuple[tuple[int, ...], int]:
    """Return the layers of each stage, and the head's stage, where blocks are dealt out by their matrices.

    A stage takes blocks until its share of all products is exceeded, the block
    that exceeds it included; the embedding costs nothing and stands first.
    Source: nanotron, `build_model` of helpers or trainer.py, which weighs a layer
    by its matrices and the head by vocabulary x hidden size.
    """
    return _compute_weighted_stages(Same(model), pipeline_parallel)


@functools.lru_cache(maxsize=1024)
def _compute_weighted_stages(same: Same[ModelSpec], pipeline_parallel: int) -> tuple[tuple[int, ...], int]:
    model = same.value
    layer_costs = [0.0] * model.num_layers
    for block in model.layers:
        for layer in block.layers:
            layer_costs[layer] = sum(op.forward_flops_per_token(0.0) for op in block.operations)
    head = sum(op.forward_flops_per_token(0.0) for op in model.head.operations if op.kind is OperationKind.MATMUL)
    share = (sum(layer_costs) + head) / pipeline_parallel
    counts, stage, done = [0] * pipeline_parallel, 0, 0.0
    for cost in layer_costs:
        counts[stage] += 1
        done += cost
        if done > share * (stage + 1) and stage < pipeline_parallel - 1:
            stage += 1
    return tuple(counts), stage


def micro_batches_in_flight(
    pipeline_parallel: IntArray,
    virtual_pipeline: IntArray,
    stage: IntArray,
    micro_batches: IntArray,
    *,
    schedule: str = "1f1b",
) -> FloatArray:
    """Return how many micro-batches' worth of a stage's activations are alive at once."""
    if schedule == "gpipe":
        every: FloatArray = np.where(pipeline_parallel > 1, micro_batches + 0 * stage, 1).astype(np.float64)
        return every
    plain = np.minimum(pipeline_parallel - stage, micro_batches)
    chunks = 2 * (pipeline_parallel - stage - 1) + (virtual_pipeline - 1) * pipeline_parallel + 1
    interleaved = np.minimum(chunks, micro_batches * virtual_pipeline) / virtual_pipeline
    in_flight: FloatArray = np.where(virtual_pipeline > 1, interleaved, plain).astype(np.float64)
    return in_flight


def deciding_stages(
    layouts: Candidates, model: ModelSpec, global_batch_size: int, *, rule: str = "by_layers", schedule: str = "1f1b"
) -> StageRows:
    """Return the stages that can be the worst: first, second where it has more layers, and the head's."""
    pipeline = layouts.pipeline_parallel
    if rule == "by_compute":
        # The first stage takes as many layers as any and the embedding, so only the head's can be worse.
        stages = [np.zeros_like(pipeline), _table(layouts, lambda degree: compute_weighted_stages(model, degree)[1])]
    else:
        second = (pipeline > 2) & (model.num_layers % pipeline > 0)
        stages = [np.zeros_like(pipeline), second.astype(np.int64), pipeline - 1]
    different = [stage for stage in stages[1:] if stage.any()]
    return _rows(layouts, np.stack([stages[0], *different]), model, global_batch_size, rule, schedule)


def all_stages(
    layouts: Candidates, model: ModelSpec, global_batch_size: int, *, rule: str = "by_layers", schedule: str = "1f1b"
) -> StageRows:
    """Return every stage of every layout, in order; a shorter pipeline's last stage is repeated."""
    pipeline = layouts.pipeline_parallel
    stage = np.arange(pipeline.max()).reshape(-1, *(1,) * pipeline.ndim)
    return _rows(layouts, np.minimum(stage, pipeline - 1), model, global_batch_size, rule, schedule)


def _rows(
    layouts: Candidates, stage: IntArray, model: ModelSpec, global_batch_size: int, rule: str, schedule: str
) -> StageRows:
    """Return the rows of `stage`, [row, *pipeline degrees]."""
    pipeline = layouts.pipeline_parallel
    before_rows = len(layouts.shape) - pipeline.ndim
    stage = stage.reshape(stage.shape[0], *(1,) * before_rows, *pipeline.shape)
    head = pipeline - 1
    first, count = stage_layers(pipeline, stage, model.num_layers)
    if rule == "by_compute":
        first, count = _weighted_layers(pipeline, stage, model)
        head = _table(layouts, lambda degree: compute_weighted_stages(model, degree)[1])
    in_flight = micro_batches_in_flight(
        pipeline, layouts.virtual_pipeline, stage, layouts.micro_batches(global_batch_size), schedule=schedule
    )
    return StageRows(
        stage=stage,
        first_layer=first,
        layers=count,
        layers_of_kind=tuple(before[first + count] - before[first] for before in _layers_before(model)),
        has_embedding=stage == 0,
        has_head=stage == head,
        in_flight=in_flight,
    )


def _weighted_layers(pipeline: IntArray, stage: IntArray, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return the first layer and the number of layers of stages dealt out by their matrices."""
    first, count = np.zeros_like(stage), np.zeros_like(stage)
    for degree in np.unique(pipeline).tolist():
        counts = np.array(compute_weighted_stages(model, degree)[0])
        chosen = np.broadcast_to(pipeline == degree, stage.shape)
        count[chosen] = counts[stage[chosen]]
        first[chosen] = (np.cumsum(counts) - counts)[stage[chosen]]
    return first, count


def _table(layouts: Candidates, value: Callable[[int], int]) -> IntArray:
    """Return a value of each layout's pipeline degree, worked out once a degree."""
    degrees, inverse = np.unique(layouts.pipeline_parallel, return_inverse=True)
    table: IntArray = np.array([value(degree) for degree in degrees.tolist()], dtype=np.int64)[inverse]
    return table


def _layers_before(model: ModelSpec) -> list[IntArray]:
    """Return for each kind of layer how many stand before layer i, for i up to the number of layers."""
    counts = []
    for block in model.layers:
        is_kind = np.zeros(model.num_layers + 1, dtype=np.int64)
        is_kind[np.array(block.layers, dtype=np.int64) + 1] = 1
        counts.append(np.cumsum(is_kind))
    return counts
