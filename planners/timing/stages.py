"""The stages that can set a pipeline's pace: those that no other one has as much of everything as."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.pipeline_layouts import block_work
from plimsoll.planners.layouts.candidates import Candidates, FloatArray, IntArray, once
from plimsoll.planners.layouts.stages import (
    MOST_KEPT_LISTS,
    MOST_KEPT_PIPELINES,
    Pipeline,
    Pipelines,
    pipelines_of,
    virtual_stage_blocks,
)

# Rows of an interleaved pipeline, of which all are timed.
MOST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingStages:
    """Stages along a first axis before those of the layouts: their layers of each kind, and how many heads.

    Behind the kinds stands how many layers are joined for multi-token prediction, of a model that has any.
    """

    layers_of_kind: tuple[FloatArray, ...]
    heads: FloatArray

    def of_slowest(self, seconds_of_kind: tuple[FloatArray, ...], head_seconds: FloatArray) -> SlowestStage:
        """Return the stage that takes longest, by the seconds of a layer of each kind and of the head."""
        every = zip(self.layers_of_kind, seconds_of_kind, strict=True)
        seconds = sum((layers * one for layers, one in every), self.heads * head_seconds)
        if len(seconds) == 1:
            return SlowestStage(seconds[0], tuple(layers[0] for layers in self.layers_of_kind), self.heads[0])
        slowest = seconds.argmax(axis=0)
        return SlowestStage(
            np.take_along_axis(seconds, slowest[np.newaxis], axis=0)[0],
            tuple(_chosen(layers, slowest) for layers in self.layers_of_kind),
            _chosen(self.heads, slowest),
        )


@dataclass(frozen=True, slots=True)
class SlowestStage:
    """The stage that sets the pace: its seconds, its layers of each kind, and its head or none."""

    seconds: FloatArray
    layers_of_kind: tuple[FloatArray, ...]
    heads: FloatArray


def _chosen(of_rows: FloatArray, row: IntArray) -> FloatArray:
    """Return what one row of each layout has."""
    chosen = np.broadcast_to(of_rows[0], row.shape)
    for number in range(1, len(of_rows)):
        chosen = np.where(row == number, of_rows[number], chosen)
    return chosen


@once
def pacing_stages(layouts: Candidates, job: Job) -> PacingStages:
    """Return the stages that can be the slowest of every layout."""
    different, place = pipelines_of(layouts, job)
    tables = Pipelines(different=different, selection=_pacing_rows, place=place)
    heads, *layers = tables.of_tables(_pacing, axes=len(layouts.shape))
    return PacingStages(layers_of_kind=tuple(layers), heads=heads)


@functools.lru_cache(maxsize=MOST_KEPT_LISTS)
def _pacing_rows(same: ByIdentity[tuple[Pipeline, ...]]) -> IntArray:
    counts = np.array([_pacing(pipeline).shape[1] for pipeline in same.value])
    row = np.arange(counts.max()).reshape(-1, 1)
    # The first row stands in for those that a shorter list lacks.
    return np.where(row < counts, row, 0)


def equal_shares(layouts: Candidates, job: Job) -> PacingStages:
    """Return stages that share all blocks equally, however many: no pipeline has a stage that is faster."""
    stages = layouts.pipeline_parallel[np.newaxis].astype(np.float64)
    parts = (*job.layers, *([job.multi_token] if job.multi_token else ()))
    return PacingStages(
        layers_of_kind=tuple(part.block.repeats / stages for part in parts), heads=job.model.heads / stages
    )


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def _pacing(pipeline: Pipeline) -> FloatArray:
    """Return the heads and layers of each kind that can set the pace, [quantity, row].

    Of one chunk a stage those are of the stages that none has as much of everything as. Of several, rounds of
    micro-batches go through one chunk of all stages, then through the next (Narayanan et al. 2021, section 2.2,
    arXiv:2104.04473), so that the pace is that of the slowest of each chunk, one after another: each choice of stages
    that can be those is a row. Of very many the one with the most products is.
    """
    of_chunks = virtual_stage_blocks(pipeline).reshape(pipeline.chunks, pipeline.degree, -1)
    first, *others = (_most(of_stages) for of_stages in of_chunks)
    rows = first
    for of_stages in others:
        rows = _most((rows[:, np.newaxis] + of_stages).reshape(-1, of_stages.shape[1]))
        if len(rows) > MOST_ROWS:
            rows = rows[[(rows @ block_work(pipeline.model)).argmax()]]
    return rows.T


def _most(of_stages: FloatArray) -> FloatArray:
    """Return the stages that none has as much of everything as, [stage, quantity], in their order."""
    kept: list[int] = []
    for stage in np.argsort(-of_stages.sum(axis=1), kind="stable").tolist():
        if not any((of_stages[other] >= of_stages[stage]).all() for other in kept):
            kept.append(stage)
    return of_stages[sorted(kept)]
