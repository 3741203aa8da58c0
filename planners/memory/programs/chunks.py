"""Which part of an interleaved stage's layers is in its highest chunk, and which in its lowest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.stages import chunk_layers, model_runs
from plimsoll.planners.memory.programs.question import Question

WHOLE: FloatArray = np.ones(())


class ChunkParts(NamedTuple):
    """Parts of a stage's layers of a kind: those below the highest chunk, and those of the lowest."""

    below_highest: FloatArray
    lowest: FloatArray


def chunk_parts(asked: Question, kind: int) -> ChunkParts | None:
    """Return where a stage has its layers of a kind; None where no stage has several chunks."""
    layouts, rows, model = asked.layouts, asked.rows, asked.job.model
    virtual = layouts.virtual_pipeline
    if virtual.max() == 1:
        return None
    stage, pipeline, chunks = np.broadcast_arrays(rows.stage, layouts.pipeline_parallel, virtual)
    runs = [run.layers for run in model_runs(ByIdentity(model)) if run.kind == kind]
    lowest = highest = np.zeros(stage.shape)
    dealt = chunk_layers(model, stage, pipeline, chunks, rule=asked.job.profile.can.stage_rule)
    for chunk, (first, count) in enumerate(dealt):
        held = sum((_overlap(first, count, layers) for layers in runs), np.zeros(stage.shape))
        lowest = held if chunk == 0 else lowest
        highest = np.where(chunks == chunk + 1, held, highest)
    every = np.maximum(rows.layers_of_kind[kind], 1)
    return ChunkParts(below_highest=1.0 - highest / every, lowest=lowest / every)


def goes_round_once(asked: Question) -> BoolArray:
    """Return where an interleaved stage has no more micro-batches than go through a chunk at a time."""
    layouts = asked.layouts
    micro_batches = layouts.micro_batches(asked.job.global_batch_size)
    return (layouts.virtual_pipeline > 1) & (micro_batches <= layouts.pipeline_parallel)


def _overlap(first: IntArray, count: IntArray, layers: range) -> FloatArray:
    held = np.minimum(first + count, layers.stop) - np.maximum(first, layers.start)
    overlap: FloatArray = np.maximum(held, 0).astype(np.float64)
    return overlap
