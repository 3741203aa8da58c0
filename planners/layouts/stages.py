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
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plimsoll.planners.architecture import ModelSpec, OperationKind
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct

# Pipelines of some hundred models, a few dozen degrees each.
MOST_KEPT_DEGREES = 4096
MOST_KEPT_MODELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The stages whose memory is asked for, along a first axis before those of the layouts.

    A layout with fewer stages than others has some of its own more than once. `layers_of_kind` counts the layers that
    `chunk_layers` deals to a stage, and `layers_of_run` those of each of the model's runs of like ones (`model_runs`);
    `first_layer` is the first one, were they one run.
    `pipelines` are the ones that differ, with the stages of each that are rows, [row, pipeline].
    """

    pipelines: Pipelines
    stage: IntArray
    first_layer: IntArray
    layers: IntArray
    layers_of_kind: tuple[IntArray, ...]
    layers_of_run: tuple[IntArray, ...]
    has_embedding: BoolArray
    has_head: BoolArray
    in_flight: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """Pipelines that differ in `degrees` or `chunks` a stage, the stages asked for of each, [row, pipeline].

    Each layout has one, at its `place` among them.
    """

    degrees: IntArray
    chunks: IntArray
    stages: IntArray
    place: IntArray

    def of_tables(self, table: Callable[[int, int], npt.NDArray[Any]], *, axes: int) -> npt.NDArray[Any]:
        """Return what each row has of its pipeline's table, [quantity, row, layout] with so many axes of layouts.

        `table` gives one, [quantity, stage], by degree and chunks per stage.
        """
        every = zip(self.degrees.tolist(), self.chunks.tolist(), self.stages.T, strict=True)
        of_rows = np.stack([table(degree, chunks)[:, stages] for degree, chunks, stages in every], axis=-1)
        return of_rows.take(self.place.reshape(*(1,) * (axes - self.place.ndim), *self.place.shape), axis=-1)


def stage_layers(pipeline_parallel: IntArray, stage: IntArray, num_layers: int) -> tuple[IntArray, IntArray]:
    """Return the first layer and the number of layers of each stage.

    What does not divide goes one each to the stages after the first, which has
    the embedding and the most micro-batches to keep already.
    """
    base, extra = np.divmod(num_layers, pipeline_parallel)
    first = stage * base + np.minimum(np.maximum(stage - 1, 0), extra)
    count = base + ((stage >= 1) & (stage <= extra))
    return first, count


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtStages:
    """Blocks dealt out by their matrices: layers of each stage, the head's stage, and how many stages got a block."""

    layers: tuple[int, ...]
    head: int
    reached: int


def compute_weighted_stages(model: ModelSpec, pipeline_parallel: int) -> DealtStages:
    """Return the stages of a pipeline whose blocks are dealt out by their matrices.

    A stage takes blocks until it has its share of all products, the block
    that reaches it included, and so stages can be left with nothing. Only layers and
    the head cost; the embedding stands first, the last norm before the head, the
    cast of the logits and the loss behind it. Source: nanotron, `build_model` of
    models/base.py, which weighs a layer by its matrices and the head by
    vocabulary x hidden size; the blocks of models/llama.py. It reads as if a share had to be exceeded; in the
    published runs whose shares end with a layer, 10 of 20 blocks' worth and 5 of 20, the first stage has 10 layers
    and 5, by their memory and by their time.
    """
    return _compute_weighted_stages(ByIdentity(model), pipeline_parallel)


# Of blocks that cost nothing, by where they stand (nanotron, models/llama.py).
EMBEDDINGS, LAST_NORMS, BEHIND_HEAD = 1, 1, 2


@functools.lru_cache(maxsize=MOST_KEPT_DEGREES)
def _compute_weighted_stages(same: ByIdentity[ModelSpec], pipeline_parallel: int) -> DealtStages:
    model = same.value
    layers = [0.0] * model.num_layers
    for block in model.layers:
        for layer in block.layers:
            layers[layer] = sum(op.forward_flops_per_token(0.0) for op in block.operations)
    head = sum(op.forward_flops_per_token(0.0) for op in model.head.operations if op.kind is OperationKind.MATMUL)
    costs = [0.0] * EMBEDDINGS + layers + [0.0] * LAST_NORMS + [head] + [0.0] * BEHIND_HEAD
    whole, stages, stage, done = sum(costs), [], 0, 0.0
    for cost in costs:
        stages.append(stage)
        done += cost
        if done * pipeline_parallel >= whole * (stage + 1) and stage < pipeline_parallel - 1:
            stage += 1
    of_layers = stages[EMBEDDINGS : EMBEDDINGS + model.num_layers]
    return DealtStages(
        layers=tuple(of_layers.count(each) for each in range(pipeline_parallel)),
        head=stages[-1 - BEHIND_HEAD],
        reached=stages[-1] + 1,
    )


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
    """Return the stages that can be the worst: the head's, and those that no earlier one has as many layers as.

    An earlier stage keeps no fewer micro-batches. Of a model whose layers are all
    alike those are the first, and the second where it has more layers.
    """
    degrees, chunks, place = _pipelines(layouts)
    deciding = [
        _deciding(ByIdentity(model), degree, several, rule)
        for degree, several in zip(degrees.tolist(), chunks.tolist(), strict=True)
    ]
    most = max(len(stages) for stages in deciding)
    # The first stage stands in for those that a shorter list lacks.
    stages = np.array([(*(0,) * (most - len(stages)), *stages) for stages in deciding], dtype=np.int64).T
    pipelines = Pipelines(degrees=degrees, chunks=chunks, stages=stages, place=place)
    return _rows(layouts, pipelines, model, global_batch_size, rule, schedule)


@functools.lru_cache(maxsize=MOST_KEPT_DEGREES)
def _deciding(same: ByIdentity[ModelSpec], pipeline_parallel: int, virtual_pipeline: int, rule: str) -> tuple[int, ...]:
    """Return the stages of one pipeline that can be the worst, in their order."""
    held = _held(same, pipeline_parallel, virtual_pipeline, rule)
    layers = held.layers_of_kind
    kept: list[int] = []
    for stage in range(pipeline_parallel):
        if not any((layers[earlier] >= layers[stage]).all() for earlier in kept):
            kept.append(stage)
    return tuple(sorted({*kept, *np.flatnonzero(held.has_head).tolist()}))


def all_stages(
    layouts: Candidates, model: ModelSpec, global_batch_size: int, *, rule: str = "by_layers", schedule: str = "1f1b"
) -> StageRows:
    """Return every stage of every layout, in order; a shorter pipeline's last stage is repeated."""
    degrees, chunks, place = _pipelines(layouts)
    stages = np.minimum(np.arange(degrees.max()).reshape(-1, 1), degrees - 1)
    pipelines = Pipelines(degrees=degrees, chunks=chunks, stages=stages, place=place)
    return _rows(layouts, pipelines, model, global_batch_size, rule, schedule)


def _pipelines(layouts: Candidates) -> tuple[IntArray, IntArray, IntArray]:
    """Return the pipelines' degrees and chunks a stage, and which of them each layout has."""
    most = int(layouts.virtual_pipeline.max())
    keys, place = distinct((layouts.pipeline_parallel - 1) * most + layouts.virtual_pipeline - 1)
    return keys // most + 1, keys % most + 1, place


def _rows(
    layouts: Candidates, pipelines: Pipelines, model: ModelSpec, global_batch_size: int, rule: str, schedule: str
) -> StageRows:
    same = ByIdentity(model)
    tables = pipelines.of_tables(lambda *pipeline: _held(same, *pipeline, rule).table, axes=len(layouts.shape))
    stage, first_layer, layers, has_head, *counts = tables
    runs = len(model_runs(same))
    in_flight = micro_batches_in_flight(
        layouts.pipeline_parallel,
        layouts.virtual_pipeline,
        stage,
        layouts.micro_batches(global_batch_size),
        schedule=schedule,
    )
    return StageRows(
        pipelines=pipelines,
        stage=stage,
        first_layer=first_layer,
        layers=layers,
        layers_of_kind=tuple(counts[runs:]),
        layers_of_run=tuple(counts[:runs]),
        has_embedding=stage == 0,
        has_head=has_head > 0,
        in_flight=in_flight,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What all stages of a pipeline hold of a model, as in `StageRows`.

    `table` has, by stage, its number, first layer and layers, whether it has the head, and its layers of each run and
    of each kind.
    """

    layers_of_kind: IntArray
    has_head: BoolArray
    table: IntArray


@functools.lru_cache(maxsize=MOST_KEPT_DEGREES)
def _held(same: ByIdentity[ModelSpec], pipeline_parallel: int, virtual_pipeline: int, rule: str) -> _Held:
    """Return what each stage holds of the model in all its chunks."""
    stage, pipeline, virtual = np.arange(pipeline_parallel), np.array(pipeline_parallel), np.array(virtual_pipeline)
    runs = model_runs(same)
    layers, of_run = np.zeros_like(stage), [np.zeros_like(stage) for _ in runs]
    for first, count in chunk_layers(same.value, stage, pipeline, virtual, rule=rule):
        layers += count
        for counts, run in zip(of_run[:-1], runs, strict=False):
            counts += np.minimum(first + count, run.layers.stop) - np.minimum(first, run.layers.stop)
    # So many layers are below the end of each run, and all below that of the last.
    of_run[-1] = layers
    of_run = [of_run[0], *(counts - below for below, counts in itertools.pairwise(of_run))]
    of_kind = [np.zeros_like(stage) for _ in same.value.layers]
    for counts, run in zip(of_run, runs, strict=True):
        of_kind[run.kind] += counts
    first_layer = _dealt(same.value, stage, pipeline, rule)[0]
    has_head = stage == _dealt(same.value, stage, pipeline * virtual, rule)[2] % pipeline
    return _Held(
        layers_of_kind=np.stack(of_kind, axis=1),
        has_head=has_head,
        table=np.stack([stage, first_layer, layers, has_head, *of_run, *of_kind]),
    )


def chunk_layers(
    model: ModelSpec, stage: IntArray, pipeline: IntArray, virtual: IntArray, *, rule: str = "by_layers"
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the first layer and the number of layers of each stage's first chunk, then of its second, and so on.

    Chunks go through all stages in turn: chunk c of stage i is the stage c·p + i of a pipeline of p·v stages. Source:
    Megatron-LM, megatron/core/transformer/transformer_layer.py, get_transformer_layer_offset; Narayanan et al. 2021,
    section 2.2, arXiv:2104.04473. A chunk that a stage of fewer lacks has no layers.
    """
    for chunk in range(int(virtual.max())):
        turn = np.minimum(chunk, virtual - 1) * pipeline + stage
        first, count, _ = _dealt(model, turn, pipeline * virtual, rule)
        yield first, np.where(chunk < virtual, count, 0)


def held_chunks(
    model: ModelSpec, stage: int, pipeline_parallel: int, virtual_pipeline: int, *, rule: str = "by_layers"
) -> tuple[range, ...]:
    """Return the layers of each chunk of one stage, in the order in which a micro-batch passes them."""
    one = (np.array([number]) for number in (stage, pipeline_parallel, virtual_pipeline))
    return tuple(
        range(int(first[0]), int(first[0] + count[0])) for first, count in chunk_layers(model, *one, rule=rule)
    )


def distinct_stages(
    model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int, *, rule: str = "by_layers"
) -> tuple[int, ...]:
    """Return the first of each class of equal stages: the same kinds of layers in every chunk, embedding and head.

    Of equal stages the first keeps the most micro-batches.
    """
    kinds = {layer: kind for kind, block in enumerate(model.layers) for layer in block.layers}
    has_head = _held(ByIdentity(model), pipeline_parallel, virtual_pipeline, rule).has_head
    firsts: dict[object, int] = {}
    for stage in range(pipeline_parallel):
        chunks = held_chunks(model, stage, pipeline_parallel, virtual_pipeline, rule=rule)
        held = tuple(tuple(kinds[layer] for layer in chunk) for chunk in chunks)
        firsts.setdefault((held, stage == 0, bool(has_head[stage])), stage)
    return tuple(firsts.values())


def _dealt(model: ModelSpec, stage: IntArray, pipeline: IntArray, rule: str) -> tuple[IntArray, IntArray, IntArray]:
    """Return the first layer and the number of layers of each stage, and which stage of its pipeline has the head."""
    if rule == "by_compute":
        first, count = _weighted_layers(pipeline, stage, model)
        return first, count, _table(pipeline, lambda degree: compute_weighted_stages(model, degree).head)
    first, count = stage_layers(pipeline, stage, model.num_layers)
    return first, count, pipeline - 1


def _weighted_layers(pipeline: IntArray, stage: IntArray, model: ModelSpec) -> tuple[IntArray, IntArray]:
    """Return the first layer and the number of layers of stages dealt out by their matrices."""
    first, count = np.zeros_like(stage), np.zeros_like(stage)
    for degree in np.unique(pipeline).tolist():
        counts = np.array(compute_weighted_stages(model, degree).layers)
        chosen = np.broadcast_to(pipeline == degree, stage.shape)
        count[chosen] = counts[stage[chosen]]
        first[chosen] = (np.cumsum(counts) - counts)[stage[chosen]]
    return first, count


def _table(pipeline: IntArray, value: Callable[[int], int]) -> IntArray:
    """Return a value of each pipeline degree, worked out once a degree."""
    degrees, inverse = distinct(pipeline)
    table: IntArray = np.array([value(degree) for degree in degrees.tolist()], dtype=np.int64)[inverse]
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """Layers of one kind in a row: `kind` is their place among the model's kinds."""

    kind: int
    layers: range


@functools.lru_cache(maxsize=MOST_KEPT_MODELS)
def model_runs(same: ByIdentity[ModelSpec]) -> tuple[ModelRun, ...]:
    """Return a model's layers as runs of like ones, lowest first."""
    kind_of = {layer: kind for kind, block in enumerate(same.value.layers) for layer in block.layers}
    runs: list[ModelRun] = []
    for layer in sorted(kind_of):
        if runs and runs[-1].kind == kind_of[layer]:
            runs[-1] = ModelRun(kind=kind_of[layer], layers=range(runs[-1].layers.start, layer + 1))
        else:
            runs.append(ModelRun(kind=kind_of[layer], layers=range(layer, layer + 1)))
    return tuple(runs)
