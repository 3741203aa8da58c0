"""Which part of an interleaved stage's layers is in its highest chunk, and which in its lowest."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray
from plimsoll.planners.layouts.stages import chunk_layers, model_runs
from plimsoll.planners.memory.programs.question import Question

WHOLE: FloatArray = np.ones(())
# Kinds of layers of some hundred models, a few dozen pipelines each.
MOST_KEPT_PIPELINES = 4096


class ChunkParts(NamedTuple):
    """Parts of a stage's layers of a kind: those below the highest chunk, and those of the lowest."""

    below_highest: FloatArray
    lowest: FloatArray


def chunk_parts(asked: Question, kind: int) -> ChunkParts | None:
    """Return where a stage has its layers of a kind; None where no stage has several chunks."""
    if asked.layouts.virtual_pipeline.max() == 1:
        return None
    same, rule = ByIdentity(asked.job.model), asked.job.profile.can.stage_rule
    parts = asked.rows.pipelines.of_tables(
        lambda *pipeline: _parts(same, kind, *pipeline, rule), axes=len(asked.layouts.shape)
    )
    return ChunkParts(*parts)


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def _parts(
    same: ByIdentity[ModelSpec], kind: int, pipeline_parallel: int, virtual_pipeline: int, rule: str
) -> FloatArray:
    """Return both parts of every stage of a pipeline, [part, stage]."""
    stage = np.arange(pipeline_parallel)
    degrees = (np.array(degree) for degree in (pipeline_parallel, virtual_pipeline))
    runs = [run.layers for run in model_runs(same) if run.kind == kind]
    dealt = chunk_layers(same.value, stage, *degrees, rule=rule)
    held = np.array([sum(_overlap(*chunk, layers) for layers in runs) for chunk in dealt])
    every = np.maximum(held.sum(axis=0), 1.0)
    return np.stack([1.0 - held[-1] / every, held[0] / every])


def goes_round_once(layouts: Candidates, job: Job) -> BoolArray:
    """Return where an interleaved stage has no more micro-batches than go through a chunk at a time."""
    micro_batches = layouts.micro_batches(job.global_batch_size)
    return (layouts.virtual_pipeline > 1) & (micro_batches <= layouts.pipeline_parallel)


def _overlap(first: IntArray, count: IntArray, layers: range) -> FloatArray:
    held = np.minimum(first + count, layers.stop) - np.maximum(first, layers.start)
    overlap: FloatArray = np.maximum(held, 0).astype(np.float64)
    return overlap
