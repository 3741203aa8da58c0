"""How many layers of an interleaved stage wait for their backward pass, pass by pass of the schedule.

A stage runs forward passes through a chunk for as many micro-batches as there are stages, then through the next chunk;
backward passes take the chunks in the opposite order. Source: Megatron-LM, core/pipeline_parallel/schedules.py,
`get_schedule_table` and `get_pp_rank_microbatches`; Narayanan et al. 2021, section 2.2, arXiv:2104.04473.
"""

from __future__ import annotations

import functools

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, IntArray

MOST_KEPT_PIPELINES = 8192
# Rounds of as many micro-batches as stages, after which a step's further ones change nothing.
MOST_ROUNDS = 3


@functools.lru_cache(maxsize=MOST_KEPT_PIPELINES)
def waiting_layers(layers: tuple[int, ...], degree: int) -> FloatArray:
    """Return the layers that wait on each stage as a backward pass begins, its own among them.

    `layers` are those of the virtual stages. The result is [number, stage]: the most of all passes for one round, for
    two and for three, and then, for as many rounds each, the most as the lowest chunk is differentiated, and the most
    as the highest is.
    """
    every = [_waiting(layers, degree, rounds) for rounds in range(1, MOST_ROUNDS + 1)]
    parts = (slice(None), slice(len(layers) - degree, None), slice(degree))
    return np.stack([waiting[:, part].max(axis=1) for part in parts for waiting in every])


def _waiting(layers: tuple[int, ...], degree: int, rounds: int) -> FloatArray:
    """Return the layers that wait on each stage at each of the first round's backward passes, [stage, pass]."""
    passes = len(layers)
    chunks = passes // degree
    done = np.arange(passes)
    ahead = 2 * (degree - 1 - np.arange(degree)) + passes - degree
    begun = np.minimum(done + ahead[:, np.newaxis] + 1, rounds * passes)
    live = through_chunks(begun, degree, chunks) - through_chunks(done, degree, chunks)[..., ::-1]
    of_stage = np.array(layers, dtype=np.float64).reshape(chunks, degree).T
    waiting: FloatArray = (live * of_stage[:, np.newaxis]).sum(axis=-1)
    return waiting


def through_chunks(passes: IntArray, degree: int, chunks: int) -> IntArray:
    """Return how many of the first so many forward passes went through each chunk, along a last axis."""
    rounds, rest = np.divmod(passes[..., np.newaxis], degree * chunks)
    return rounds * degree + np.clip(rest - np.arange(chunks) * degree, 0, degree)
