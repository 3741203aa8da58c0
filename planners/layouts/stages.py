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
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.pipeline_layouts import Division, PipelineLayout
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray, once
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.layouts.interleaving import MOST_ROUNDS, waiting_layers
from plimsoll.planners.layouts.pairing import Paired, paired_layers

# Pipelines of some hundred models, a few dozen degrees each, divided in a few ways.
MOST_KEPT_PIPELINES = 8192
MOST_KEPT_MODELS = 256
# Lists of the pipelines that a grid has, and what is asked of the stages of each list: a few dozen a search.
MOST_KEPT_LISTS = 1024
MOST_KEPT_TABLES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The stages whose memory is asked for, along a first axis before those of the layouts.

    A layout with fewer stages than others has some of its own more than once. `layers_of_kind` counts the layers of
    each of the model's kinds that a stage has in all its chunks, and `layers_of_run` those of each of the model's runs
    of like ones (`model_runs`); `in_flight` is how many micro-batches' worth of them wait at once.
    `pipelines` are the ones that differ, with the choice of the stages of each that are rows. A stage that
    `has_multi_token` has all layers for multi-token prediction.
    """

    pipelines: Pipelines
    stage: IntArray
    layers: IntArray
    layers_of_kind: tuple[IntArray, ...]
    layers_of_run: tuple[IntArray, ...]
    has_embedding: BoolArray
    has_head: BoolArray
    has_multi_token: BoolArray
    in_flight: FloatArray


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline's degree, its chunks a stage, and how a model's blocks are divided among them."""

    model: ByIdentity[ModelSpec]
    degree: int
    chunks: int
    way: PipelineLayout

    @property
    def division(self) -> Division:
        """Return the blocks of its virtual stages; of a way that it cannot be divided in, which a rule forbids, any."""
        model = self.model.value
        found = self.way.division(model, self.degree, self.chunks)
        if found is None:
            stages = self.degree * self.chunks
            each, rest = divmod(model.num_layers, stages)
            layers = [each + (stage < rest) for stage in range(stages)]
            layers[-1] += model.multi_token_layers
            multi_token = stages - 1 if model.multi_token else None
            found = Division(layers=tuple(layers), head=stages - 1, multi_token=multi_token)
        return found

    def held(self, stage: int) -> tuple[range, ...]:
        """Return the layers of each chunk of one stage, in the order in which a micro-batch passes them.

        Chunks go through all stages in turn: chunk c of stage i is virtual stage c·p + i. Source: Megatron-LM,
        megatron/core/transformer/transformer_layer.py, get_transformer_layer_offset; Narayanan et al. 2021,
        section 2.2, arXiv:2104.04473.
        """
        layers = self.division.layers
        ends = tuple(itertools.accumulate(layers))
        own = range(stage, len(layers), self.degree)
        return tuple(range(ends[turn] - layers[turn], ends[turn]) for turn in own)

    def spans(self, stage: int) -> tuple[tuple[int, int], ...]:
        """Return the first and last layer of each chunk of a stage, in that order; an empty one is (n, n - 1)."""
        return tuple((layers.start, layers.stop - 1) for layers in self.held(stage))

    def span(self, stage: int) -> tuple[int, int]:
        """Return the first and last layer of a stage, those of several chunks counted as if they were one run."""
        of_stages = np.array(self.division.layers).reshape(-1, self.degree).sum(axis=0)
        before = int(of_stages[:stage].sum())
        return before, before + int(of_stages[stage]) - 1

    def has_head(self, stage: int) -> bool:
        """Return whether a stage has the last norm and the head."""
        return self.division.head % self.degree == stage

    def has_multi_token(self, stage: int) -> bool:
        """Return whether a stage has the layers for multi-token prediction."""
        multi_token = self.division.multi_token
        return multi_token is not None and multi_token % self.degree == stage


# Chooses the stages that are asked for of each of a list of pipelines, [row, pipeline].
Selection = Callable[[ByIdentity[tuple[Pipeline, ...]]], IntArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """Pipelines that differ, and which stages are asked for of each.

    Each layout has one, at its `place` among them.
    """

    different: tuple[Pipeline, ...]
    selection: Selection
    place: IntArray

    def of_tables(self, table: Callable[..., npt.NDArray[Any]], *asked: Hashable, axes: int) -> npt.NDArray[Any]:
        """Return what each row has of its pipeline's table, [quantity, row, layout] with so many axes of layouts.

        `table` gives a pipeline's, [quantity, stage], and gives the same whenever it is `asked` the same.
        """
        return self._spread(_kept_rows(table, asked, self.selection, ByIdentity(self.different)), axes)

    def of_numbers(self, numbers: Callable[[Pipeline], npt.NDArray[Any]], *, axes: int) -> npt.NDArray[Any]:
        """Return the number that each row has of those of its pipeline's stages, [row, layout]; none is kept."""
        return self._spread(_rows_of(numbers, self.different, self.selection), axes)

    def _spread(self, of_rows: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
        return of_rows.take(self.place.reshape(*(1,) * (axes - self.place.ndim), *self.place.shape), axis=-1)


@functools.lru_cache(maxsize=MOST_KEPT_TABLES)
def _kept_rows(
    table: Callable[..., npt.NDArray[Any]],
    asked: tuple[Hashable, ...],
    selection: Selection,
    same: ByIdentity[tuple[Pipeline, ...]],
) -> npt.NDArray[Any]:
    return _rows_of(lambda pipeline: table(pipeline, *asked), same.value, selection)


def _rows_of(
    table: Callable[[Pipeline], npt.NDArray[Any]], different: tuple[Pipeline, ...], selection: Selection
) -> npt.NDArray[Any]:
    """Return the stages chosen of each pipeline's table, along a last axis."""
    every = zip(different, selection(ByIdentity(different)).T, strict=True)
    return np.stack([table(pipeline)[..., stages] for pipeline, stages in every], axis=-1)


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
    plain: IntArray = np.minimum(pipeline_parallel - stage, micro_batches)
    if virtual_pipeline.max(initial=1) == 1:
        return plain.astype(np.float64)
    chunks = 2 * (pipeline_parallel - stage - 1) + (virtual_pipeline - 1) * pipeline_parallel + 1
    interleaved = np.minimum(chunks, micro_batches * virtual_pipeline) / virtual_pipeline
    in_flight: FloatArray = np.where(virtual_pipeline > 1, interleaved, plain).astype(np.float64)
    return in_flight


@once
def deciding_stages(layouts: Candidates, job: Job) -> StageRows:
    """Return the stages that can need the most: the head's, and those that no earlier one has as many layers as.

    So can one with layers for multi-token prediction. An earlier stage keeps no fewer micro-batches. Of a model whose
    layers are all alike those are the first, and the second where it has more layers.
    """
    different, place = pipelines_of(layouts, job)
    return _rows(layouts, Pipelines(different=different, selection=_deciding_stages, place=place), job)


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _deciding_stages(same: ByIdentity[tuple[Pipeline, ...]]) -> IntArray:
    deciding = [_deciding(pipeline) for pipeline in same.value]
    most = max(len(stages) for stages in deciding)
    # The first stage stands in for those that a shorter list lacks.
    return np.array([(*(0,) * (most - len(stages)), *stages) for stages in deciding], dtype=np.int64).T


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def _deciding(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the stages of one pipeline that can need the most, in their order."""
    held = stage_blocks(pipeline)
    layers = held.layers_of_kind
    kept: list[int] = []
    for stage in range(pipeline.degree):
        if not any((layers[earlier] >= layers[stage]).all() for earlier in kept):
            kept.append(stage)
    return tuple(sorted({*kept, *np.flatnonzero(held.has_head | held.has_multi_token).tolist()}))


def all_stages(layouts: Candidates, job: Job) -> StageRows:
    """Return every stage of every layout, in order; a shorter pipeline's last stage is repeated."""
    different, place = pipelines_of(layouts, job)
    return _rows(layouts, Pipelines(different=different, selection=_every_stage, place=place), job)


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _every_stage(same: ByIdentity[tuple[Pipeline, ...]]) -> IntArray:
    degrees = np.array([pipeline.degree for pipeline in same.value])
    stages: IntArray = np.minimum(np.arange(degrees.max()).reshape(-1, 1), degrees - 1)
    return stages


@once
def pipelines_of(layouts: Candidates, job: Job) -> tuple[tuple[Pipeline, ...], IntArray]:
    """Return the layouts' pipelines that differ, one tuple for all that have the same, and which each layout has."""
    return _pipelines_of(layouts.pipeline_parallel, layouts.virtual_pipeline, layouts.pipeline_layout, job)


def longest_stages(
    pipeline_parallel: IntArray, virtual_pipeline: IntArray, pipeline_layout: IntArray, job: Job
) -> IntArray:
    """Return how many layers the stage with the most has, of pipelines in so many chunks and by ways of the job's."""
    different, place = _pipelines_of(pipeline_parallel, virtual_pipeline, pipeline_layout, job)
    longest = [int(stage_blocks(pipeline).layers_of_kind.sum(axis=1).max()) for pipeline in different]
    result: IntArray = np.array(longest, dtype=np.int64)[place]
    return result


def _pipelines_of(stages: IntArray, chunks: IntArray, way: IntArray, job: Job) -> tuple[tuple[Pipeline, ...], IntArray]:
    most, ways = int(chunks.max(initial=1)), len(job.pipeline_layouts)
    numbered = stages - 1
    if most > 1:
        numbered = numbered * most + chunks - 1
    if ways > 1:
        numbered = numbered * ways + way
    keys, place = distinct(numbered)
    return _different(ByIdentity(job.model), ByIdentity(job.pipeline_layouts), most, tuple(keys.tolist())), place


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _different(
    same: ByIdentity[ModelSpec], ways: ByIdentity[tuple[PipelineLayout, ...]], most: int, keys: tuple[int, ...]
) -> tuple[Pipeline, ...]:
    """Return the pipelines that `pipelines_of` numbers by degree, chunks and the way to divide them."""
    every = ways.value
    numbers = [(*divmod(key // len(every), most), key % len(every)) for key in keys]
    return tuple(Pipeline(same, degree + 1, chunks + 1, every[way]) for degree, chunks, way in numbers)


def pipeline_of(layouts: Candidates, index: int, job: Job) -> Pipeline:
    """Return the pipeline of one of a list of layouts."""
    return Pipeline(
        ByIdentity(job.model),
        int(layouts.pipeline_parallel[index]),
        int(layouts.virtual_pipeline[index]),
        job.pipeline_layouts[int(layouts.pipeline_layout[index])],
    )


def _rows(layouts: Candidates, pipelines: Pipelines, job: Job) -> StageRows:
    tables = pipelines.of_tables(_stage_table, axes=len(layouts.shape))
    stage, layers, has_head, has_multi_token, *counts = tables
    runs = len(model_runs(ByIdentity(job.model)))
    return StageRows(
        pipelines=pipelines,
        stage=stage,
        layers=layers,
        layers_of_kind=tuple(counts[runs:]),
        layers_of_run=tuple(counts[:runs]),
        has_embedding=stage == 0,
        has_head=has_head > 0,
        in_flight=_in_flight(layouts, pipelines, stage, layers, job),
        has_multi_token=has_multi_token > 0,
    )


def _in_flight(layouts: Candidates, pipelines: Pipelines, stage: IntArray, layers: IntArray, job: Job) -> FloatArray:
    """Return how many micro-batches' worth of their layers stages keep, those of unlike chunks weighed."""
    in_flight = micro_batches_in_flight(
        layouts.pipeline_parallel,
        layouts.virtual_pipeline,
        stage,
        layouts.micro_batches(job.global_batch_size),
        schedule=job.pipeline_schedule,
    )
    if not _have_unlike_chunks(ByIdentity(pipelines.different)):
        return in_flight
    most = waiting_in_chunks(layouts, pipelines, job)[0] / np.maximum(layers, 1)
    result: FloatArray = np.where(layouts.virtual_pipeline > 1, most, in_flight)
    return result


def waiting_in_chunks(layouts: Candidates, pipelines: Pipelines, job: Job) -> FloatArray:
    """Return the layers that wait on stages of several chunks.

    The most ever, the most as the lowest chunk is differentiated, and as the highest is.
    """
    return _by_rounds(_waiting_layers, layouts, pipelines, job)


def paired_in_chunks(layouts: Candidates, pipelines: Pipelines, job: Job) -> Paired:
    """Return the layers that wait where forward passes run beside backward ones, of whatever number of chunks."""
    return Paired(*_by_rounds(_paired_layers, layouts, pipelines, job))


def _by_rounds(
    table: Callable[[Pipeline], FloatArray], layouts: Candidates, pipelines: Pipelines, job: Job
) -> FloatArray:
    """Return quantities that a table has for one round of micro-batches, for two and for three."""
    rounds = layouts.micro_batches(job.global_batch_size) // layouts.pipeline_parallel
    every = pipelines.of_tables(table, axes=len(layouts.shape))
    by_rounds = every.reshape(-1, MOST_ROUNDS, *every.shape[1:])
    place = np.minimum(np.maximum(rounds, 1), MOST_ROUNDS) - 1
    chosen: FloatArray = place.choose(list(by_rounds.swapaxes(0, 1)))
    return chosen


def _waiting_layers(pipeline: Pipeline) -> FloatArray:
    return waiting_layers(pipeline.division.layers, pipeline.degree)


def _paired_layers(pipeline: Pipeline) -> FloatArray:
    return paired_layers(pipeline.division.layers, pipeline.degree)


def layers_of_lowest(layouts: Candidates, pipelines: Pipelines) -> IntArray:
    """Return the layers of each stage's lowest chunk."""
    (layers,) = pipelines.of_tables(_layers_of_lowest, axes=len(layouts.shape))
    lowest: IntArray = layers
    return lowest


def layers_of_highest(layouts: Candidates, pipelines: Pipelines) -> IntArray:
    """Return the layers of each stage's highest chunk."""
    (layers,) = pipelines.of_tables(_layers_of_highest, axes=len(layouts.shape))
    highest: IntArray = layers
    return highest


def _layers_of_lowest(pipeline: Pipeline) -> IntArray:
    return np.array([pipeline.division.layers[: pipeline.degree]])


def _layers_of_highest(pipeline: Pipeline) -> IntArray:
    return np.array([pipeline.division.layers[-pipeline.degree :]])


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _have_unlike_chunks(same: ByIdentity[tuple[Pipeline, ...]]) -> bool:
    """Return whether any stage of any pipeline has chunks of unlike numbers of layers."""
    return any(
        len({*pipeline.division.layers[stage :: pipeline.degree]}) > 1
        for pipeline in same.value
        for stage in range(pipeline.degree)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBlocks:
    """What all stages of a pipeline hold of a model: layers of each kind, [stage, kind], and which has the head.

    `table` has, by stage, its number, its layers, whether it has the head and whether layers for multi-token
    prediction, and its layers of each run and of each kind.
    """

    layers_of_kind: IntArray
    has_head: BoolArray
    has_multi_token: BoolArray
    table: IntArray


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def stage_blocks(pipeline: Pipeline) -> StageBlocks:
    """Return what each stage holds of the model in all its chunks."""
    runs = model_runs(pipeline.model)
    of_run = _virtual_stage_runs(pipeline).reshape(pipeline.chunks, pipeline.degree, -1).sum(axis=0).T
    of_kind = np.zeros((len(pipeline.model.value.layers), pipeline.degree), dtype=np.int64)
    for number, run in enumerate(runs):
        of_kind[run.kind] += of_run[number]
    stages = np.arange(pipeline.degree)
    has_head, has_multi_token = (
        np.array([has(stage) for stage in stages.tolist()]) for has in (pipeline.has_head, pipeline.has_multi_token)
    )
    return StageBlocks(
        layers_of_kind=of_kind.T,
        has_head=has_head,
        has_multi_token=has_multi_token,
        table=np.stack([stages, of_run.sum(axis=0), has_head, has_multi_token, *of_run, *of_kind]),
    )


def _stage_table(pipeline: Pipeline) -> IntArray:
    return stage_blocks(pipeline).table


def virtual_stage_blocks(pipeline: Pipeline) -> FloatArray:
    """Return heads and layers of each kind of every virtual stage, [virtual stage, quantity].

    Behind them stands how many of the layers are for multi-token prediction, of a model that has any.
    """
    of_run, division, model = _virtual_stage_runs(pipeline), pipeline.division, pipeline.model.value
    blocks = np.zeros((len(division.layers), 1 + len(model.layers) + (division.multi_token is not None)))
    blocks[division.head, 0] = model.heads
    if division.multi_token is not None:
        blocks[division.multi_token, -1] = model.multi_token_layers
    for number, run in enumerate(model_runs(pipeline.model)):
        blocks[:, 1 + run.kind] += of_run[:, number]
    return blocks


def _virtual_stage_runs(pipeline: Pipeline) -> IntArray:
    """Return the layers of each of the model's runs of like ones in every virtual stage, [virtual stage, run]."""
    ends = np.cumsum(pipeline.division.layers)
    starts = ends - pipeline.division.layers
    runs = [run.layers for run in model_runs(pipeline.model)]
    first, behind = np.array([run.start for run in runs]), np.array([run.stop for run in runs])
    held: IntArray = np.minimum(ends[:, None], behind) - np.maximum(starts[:, None], first)
    return np.maximum(held, 0)


def overlap(some: range, others: range) -> int:
    """Return how many numbers two runs have in common."""
    return max(min(some.stop, others.stop) - max(some.start, others.start), 0)


def distinct_stages(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the first of each class of equal stages: the same kinds of layers in every chunk, embedding and head.

    Of equal stages the first keeps the most micro-batches.
    """
    kinds = {layer: kind for kind, block in enumerate(pipeline.model.value.layers) for layer in block.layers}
    firsts: dict[object, int] = {}
    for stage in range(pipeline.degree):
        held = tuple(tuple(kinds[layer] for layer in chunk) for chunk in pipeline.held(stage))
        firsts.setdefault((held, stage == 0, pipeline.has_head(stage), pipeline.has_multi_token(stage)), stage)
    return tuple(firsts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """Layers of one kind in a row: `kind` is their place among the model's kinds.

    Those for multi-token prediction are a run of their own.
    """

    kind: int
    layers: range
    is_multi_token: bool = False


@functools.lru_cache(maxsize=MOST_KEPT_MODELS)
def model_runs(same: ByIdentity[ModelSpec]) -> tuple[ModelRun, ...]:
    """Return a model's layers as runs of like ones, lowest first."""
    kind_of = {layer: kind for kind, block in enumerate(same.value.layers) for layer in block.layers}
    runs: list[ModelRun] = []
    for layer in sorted(kind_of):
        key = (kind_of[layer], layer >= same.value.num_layers)
        start = layer
        if runs and (runs[-1].kind, runs[-1].is_multi_token) == key:
            start = runs.pop().layers.start
        runs.append(ModelRun(kind=key[0], layers=range(start, layer + 1), is_multi_token=key[1]))
    return tuple(runs)
