"""What waits on a stage whose forward passes run beside backward passes of other micro-batches, layer by layer.

One forward pass more has been begun than a schedule without pairs would begin, so that no pair depends on itself.
Source: NVIDIA/Megatron-LM core_v0.16.1, core/pipeline_parallel/combined_1f1b.py, and schedules.py,
`get_pp_rank_microbatches`; models/common/model_chunk_schedule_plan.py (`TransformerModelChunkSchedulePlan.run`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.interleaving import MOST_KEPT_PIPELINES, MOST_ROUNDS, through_chunks


class Paired(NamedTuple):
    """Layers that wait as a pair of passes is under way, those of both among them, and layers that are remembered.

    `waiting` is the most of all pairs, 0 where no pair comes about, `at_head` as the forward pass of one has just been
    through the highest chunk, `at_embedding` as the backward pass has been through the lowest. Beside each stand
    layers whose latest micro-batch has been differentiated, but which remember it until the next one.
    """

    waiting: FloatArray
    remembered: FloatArray
    at_head: FloatArray
    remembered_at_head: FloatArray
    at_embedding: FloatArray
    remembered_at_embedding: FloatArray


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def paired_layers(layers: tuple[int, ...], degree: int) -> FloatArray:
    """Return what `Paired` has of each stage, `layers` those of the virtual stages.

    The result is [number, stage]: each field for one round of micro-batches, for two and for three.
    """
    every = np.stack([np.stack(_paired(layers, degree, rounds)) for rounds in range(1, MOST_ROUNDS + 1)], axis=1)
    flat: FloatArray = every.reshape(-1, degree)
    return flat


class _Pairs(NamedTuple):
    """The pairs of each stage, [stage, pass]; `waiting` and `differentiated` passes of each chunk besides."""

    exist: BoolArray
    of_forward: BoolArray
    of_backward: BoolArray
    waiting: IntArray
    differentiated: IntArray


def _paired(layers: tuple[int, ...], degree: int, rounds: int) -> Paired:
    held = np.array(layers, dtype=np.float64).reshape(-1, degree).T[:, np.newaxis]
    pairs = _pairs(degree, held.shape[-1], rounds)
    before = (pairs.waiting * held).sum(axis=-1)
    forward, backward = ((part * held).sum(axis=-1) for part in (pairs.of_forward, pairs.of_backward))
    after = before - backward + forward
    kept_after = pairs.waiting + pairs.of_forward - pairs.of_backward
    left = ((kept_after == 0) & (pairs.differentiated + pairs.of_backward > 0)) * held
    has_head, has_embedding = pairs.exist & pairs.of_forward[..., -1], pairs.exist & pairs.of_backward[..., 0]
    at_head, left_at_head = _most(after, left.sum(axis=-1), has_head)
    return Paired(
        *_most(before, _remembered(pairs, held), pairs.exist),
        np.maximum(at_head, before[:, 0]),
        left_at_head,
        *_most(after, left.sum(axis=-1), has_embedding),
    )


def _pairs(degree: int, chunks: int, rounds: int) -> _Pairs:
    """Return the pairs of a step's passes; backward passes take the chunks in the opposite order."""
    done = np.arange(rounds * degree * chunks)
    ahead = 2 * (degree - 1 - np.arange(degree)) + (chunks - 1) * degree + 1
    begun = np.minimum(done + ahead[:, np.newaxis], done.size)
    numbers = np.arange(chunks)
    differentiated = through_chunks(done, degree, chunks)[..., ::-1]
    return _Pairs(
        exist=begun < done.size,
        of_forward=(begun // degree % chunks)[..., np.newaxis] == numbers,
        of_backward=((chunks - 1 - done // degree % chunks)[:, np.newaxis] == numbers)[np.newaxis],
        waiting=through_chunks(begun, degree, chunks) - differentiated,
        differentiated=differentiated,
    )


def _remembered(pairs: _Pairs, held: FloatArray) -> FloatArray:
    """Return the most layers that remember a differentiated micro-batch at some layer of each pair, [stage, pass].

    A forward pass lets its chunk's layers forget, from the lowest on; a backward pass through the latest micro-batch
    of its chunk leaves layers that remember, from the highest on.
    """
    is_over = (pairs.waiting == 0) & (pairs.differentiated > 0)
    elsewhere = (is_over & ~pairs.of_forward & ~pairs.of_backward) * held
    is_latest = pairs.of_backward & (pairs.waiting == 1)
    both = (is_latest & pairs.of_forward) * np.maximum(held - 1, 0) // 2
    ends = np.maximum((is_over & pairs.of_forward) * (held - 1), 0).max(axis=-1)
    begins = np.maximum((is_latest & ~pairs.of_forward) * (held - 1), 0).max(axis=-1)
    remembered: FloatArray = elsewhere.sum(axis=-1) + both.sum(axis=-1) + np.maximum(ends, begins)
    return remembered


def _most(waiting: FloatArray, remembered: FloatArray, where: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the most layers that wait of each stage, and the most that are remembered as so many do."""
    of_pairs = np.where(where, waiting, 0.0)
    most = of_pairs.max(axis=1)
    beside = np.where(where & (of_pairs == most[:, np.newaxis]), remembered, 0.0)
    return most, beside.max(axis=1)
