"""The parts of a model that each stage holds, and how many of each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from plimsoll.planners.architecture import Split, Weight
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.shards import MOST_KEPT_ANSWERS


def copies_of_table(rows: StageRows, job: Job) -> IntArray:
    """Return how many copies of the embedding's matrix stages without the embedding have.

    With a tied head on another stage than the embedding the matrix stands on both, and where layers for multi-token
    prediction embed tokens.
    """
    tied = (rows.has_head & job.model.tied_head).astype(np.int64)
    copies: IntArray = np.where(rows.has_embedding, 0, tied + rows.has_multi_token)
    return copies


def parts_of_stages(rows: StageRows, job: Job) -> tuple[tuple[BlockWeights, IntArray], ...]:
    """Return each part with how many of it every stage has; the copied table of an embedding is a part."""
    joints = rows.has_multi_token * np.int64(job.model.multi_token_layers)
    return (
        (job.embedding, rows.has_embedding.astype(np.int64)),
        *zip(job.layers, rows.layers_of_kind, strict=True),
        *([(job.multi_token, joints)] if job.multi_token else ()),
        (job.head, rows.has_head.astype(np.int64)),
        (vocabulary_only(job.embedding), copies_of_table(rows, job)),
    )


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def vocabulary_only(part: BlockWeights) -> BlockWeights:
    """Return a part's matrices with a row for each word."""

    def chosen(weights: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(weight for weight in weights if weight.split is Split.VOCABULARY)

    return BlockWeights(block=part.block, trainable=chosen(part.trainable), frozen=chosen(part.frozen))
