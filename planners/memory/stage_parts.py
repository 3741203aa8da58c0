"""The parts of a model that each stage holds, and how many of each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from plimsoll.planners.architecture import Split, Weight
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.layouts.stages import MOST_KEPT_PIPELINES, Pipeline, StageRows, stage_blocks
from plimsoll.planners.memory.shards import MOST_KEPT_ANSWERS

Counts = tuple[int, ...]


def copies_of_table(rows: StageRows, job: Job) -> IntArray:
    """Return how many copies of the embedding's matrix stages without the embedding have.

    With a tied head on another stage than the embedding the matrix stands on both, and where layers for multi-token
    prediction embed tokens.
    """
    tied = (rows.has_head & job.model.tied_head).astype(np.int64)
    copies: IntArray = np.where(rows.has_embedding, 0, tied + rows.has_multi_token)
    return copies


def parts_of(job: Job) -> tuple[BlockWeights, ...]:
    """Return the model's parts, last of them the embedding's matrix, which other stages may have a copy of."""
    return (*job.parts, vocabulary_only(job.embedding))


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def counts_of_stages(pipeline: Pipeline) -> tuple[Counts, ...]:
    """Return how many of each part every stage of a pipeline has, in their order."""
    model, blocks = pipeline.model.value, stage_blocks(pipeline)
    found = []
    for stage, layers in enumerate(blocks.layers_of_kind.tolist()):
        has_head, has_multi_token = bool(blocks.has_head[stage]), bool(blocks.has_multi_token[stage])
        joints = (has_multi_token * model.multi_token_layers,) if model.multi_token else ()
        copies = 0 if stage == 0 else has_head * model.tied_head + has_multi_token
        found.append((int(stage == 0), *layers, *joints, int(has_head), int(copies)))
    return tuple(found)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def vocabulary_only(part: BlockWeights) -> BlockWeights:
    """Return a part's matrices with a row for each word."""

    def chosen(weights: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(weight for weight in weights if weight.split is Split.VOCABULARY)

    return BlockWeights(block=part.block, trainable=chosen(part.trainable), frozen=chosen(part.frozen))
