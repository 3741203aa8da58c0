"""Which part of an interleaved stage's layers is in its highest chunk, and which in its lowest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.layouts.stages import Pipeline, model_runs, overlap
from plimsoll.planners.memory.programs.question import Question

WHOLE: FloatArray = np.ones(())


class ChunkParts(NamedTuple):
    """Parts of a stage's layers of a kind: those below the highest chunk, and those of the lowest."""

    below_highest: FloatArray
    lowest: FloatArray


def chunk_parts(asked: Question, kind: int) -> ChunkParts | None:
    """Return where a stage has its layers of a kind; None where no stage has several chunks."""
    if asked.layouts.virtual_pipeline.max() == 1:
        return None
    axes = len(asked.layouts.shape)
    parts = asked.rows.pipelines.of_tables(_parts, kind, axes=axes)
    return ChunkParts(*parts)


def _parts(pipeline: Pipeline, kind: int) -> FloatArray:
    """Return both parts of every stage of a pipeline, [part, stage]."""
    runs = [run.layers for run in model_runs(pipeline.model) if run.kind == kind]
    held = np.array(
        [
            [sum(overlap(chunk, layers) for layers in runs) for chunk in pipeline.held(stage)]
            for stage in range(pipeline.degree)
        ],
        dtype=np.float64,
    ).T
    every = np.maximum(held.sum(axis=0), 1.0)
    return np.stack([1.0 - held[-1] / every, held[0] / every])


def goes_round_once(layouts: Candidates, job: Job) -> BoolArray:
    """Return where an interleaved stage has no more micro-batches than go through a chunk at a time."""
    micro_batches = layouts.micro_batches(job.global_batch_size)
    return (layouts.virtual_pipeline > 1) & (micro_batches <= layouts.pipeline_parallel)
