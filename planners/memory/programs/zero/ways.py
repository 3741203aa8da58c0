"""What DeepSpeed's engine holds beside states and activations, for each way in which a layout has it work; in bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.memory.activations import has_dropout
from plimsoll.planners.memory.nvme import SUB_GROUP_ELEMENTS
from plimsoll.planners.memory.programs.zero.levels import Numbers, levels
from plimsoll.planners.memory.programs.zero.reduction import (
    DividedAsTheyCome,
    Kept,
    Parts,
    Reduction,
    ScatteredAsTheyCome,
    Sending,
    divided_at_boundary,
    fullest_ranks,
    runs_beyond,
    whole_at_boundary,
)
from plimsoll.planners.memory.programs.zero.script import persistent_elements
from plimsoll.planners.memory.programs.zero.tensors import MOST_KEPT_PARTS, Tensor, model_tensors
from plimsoll.planners.memory.programs.zero.walk import Reduced, reduced_by, walk
from plimsoll.planners.stacks.records import ZeroBuckets

PARAMETERS_TOO = 2  # of what is offloaded
WHOLE, OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED, WEIGHTS_DIVIDED = range(4)
# `get_norm_dtype`: the norm of each gradient is taken in fp64.
NORM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Way:
    """All of a layout that decides what the engine does with tensors."""

    stage: int
    ranks: int
    expert_parallel: int
    adds_up: bool
    is_recomputed: bool
    offload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """All of a job that decides it."""

    embedding: BlockWeights
    layers: tuple[BlockWeights, ...]
    head: BlockWeights
    is_tied: bool
    has_leaves: bool
    has_dropout: bool
    size: int
    keeps_copies_apart: bool
    moment_bytes: int
    to_drives: bool
    bucket: int
    gathering: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Followed:
    """What one way takes, in bytes.

    `parts` are the layers, the head and the embedding, as `HEAD` and `EMBEDDING` count from the end: of each the most
    forwards, what is left, the moments backwards, and what is left.
    """

    parts: Numbers
    flush: int
    at_boundary: int
    touched: int
    staged: int
    persistent: int
    update: int


def engine_of(job: Job, told: ZeroBuckets) -> Engine:
    return Engine(
        embedding=job.embedding,
        layers=job.layers,
        head=job.head,
        is_tied=job.model.tied_head,
        has_dropout=any(has_dropout(part.block) for part in job.layers),
        has_leaves=job.model.model_type in told.whole_mixtures,
        size=job.precision.compute_bytes,
        moment_bytes=job.states.moment * min(job.optimizer.moments, job.optimizer.hidden_matrix_moments),
        to_drives=job.offload_target == "nvme",
        keeps_copies_apart=job.optimizer.name != "adamw",
        bucket=told.reduce_bucket_elements,
        gathering=(told.max_live_elements, told.prefetch_bucket_elements),
    )


@functools.lru_cache(maxsize=4096)
def follow(engine: Engine, way: Way) -> Followed:
    tensors = model_tensors(engine.embedding, engine.layers, engine.head, way.expert_parallel)
    learning = tensors.learning
    elements = sum(tensor.elements for tensor in learning)
    parts = _parts(learning, way.ranks)
    sending = None
    if way.offload:
        cast = FP32_BYTES // engine.size
        sending = Sending(
            norm=NORM_BYTES // engine.size,
            cast=cast,
            adds_up=way.adds_up and way.stage == GRADIENTS_DIVIDED,
            all_at_once=cast if engine.to_drives else 0,
        )
    is_sharded = way.stage == WEIGHTS_DIVIDED
    gathers = is_sharded and (way.ranks > 1 or way.offload == PARAMETERS_TOO)
    events = levels(
        tensors,
        engine.gathering if gathers else None,
        is_tied=engine.is_tied,
        is_recomputed=way.is_recomputed,
        has_leaves=engine.has_leaves and is_sharded,
        has_dropout=engine.has_dropout,
        bias_first=not is_sharded,
    )
    moments = 0 if way.offload else sum(-(-tensor.elements // way.ranks) for tensor in learning) * engine.moment_bytes
    pulled_by = way.ranks if way.offload == PARAMETERS_TOO else None
    # What stages 0 and 1 do before the end hangs on no number of ranks, nor what stage 0 does at the end.
    is_whole = way.stage <= OPTIMIZER_DIVIDED
    reduced = _reduced(
        events.reduced,
        learning,
        max(way.stage, OPTIMIZER_DIVIDED),
        1 if is_whole else way.ranks,
        engine.bucket,
        sending,
        way.adds_up and is_whole,
    )
    done = walk(events, reduced, spared=moments // engine.size, pulled_by=pulled_by)
    at_boundary = 0
    if is_whole:
        at_boundary = _at_boundary(learning, way.ranks if way.stage else None, engine.bucket, sending)
    size = engine.size
    most_forwards = done.forward[:, :-1].max(axis=1)
    return Followed(
        parts=size * np.column_stack([most_forwards, done.forward[:, -1], done.backward]),
        flush=size * (done.end - done.before_end),
        at_boundary=size * at_boundary,
        touched=0 if sending else size * max(part.touched for part in parts),
        staged=size * max((tensor.elements for tensor in learning), default=0) if sending and not is_sharded else 0,
        persistent=size * persistent_elements(tensors) if gathers else 0,
        update=_update(engine, way, parts, learning, elements),
    )


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def _reduced(
    gradients: tuple[Tensor, ...],
    learning: tuple[Tensor, ...],
    stage: int,
    ranks: int,
    bucket: int,
    sending: Sending | None,
    adds_up: bool,
) -> Reduced:
    """Return what gradients hold that come in this order: several ways share it."""
    reductions: list[Reduction] = [Kept(adds_up=adds_up)]
    if stage == GRADIENTS_DIVIDED:
        reductions = [DividedAsTheyCome(learning, part, bucket, sending) for part in _parts(learning, ranks)]
    elif stage == WEIGHTS_DIVIDED:
        reductions = [ScatteredAsTheyCome(ranks, bucket, sending)]
    return reduced_by(reductions, gradients)


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def _at_boundary(learning: tuple[Tensor, ...], ranks: int | None, bucket: int, sending: Sending | None) -> int:
    """Return what is made beside all gradients as a step's last micro-batch ends, without ranks at stage 0."""
    if ranks is None:
        return whole_at_boundary(learning)
    most = max(divided_at_boundary(learning, part, bucket, sending) for part in _parts(learning, ranks))
    return most - sum(tensor.elements for tensor in learning)


@functools.lru_cache(maxsize=MOST_KEPT_PARTS)
def _parts(learning: tuple[Tensor, ...], ranks: int) -> tuple[Parts, ...]:
    """Return the parts of the fullest ranks of stages 1 and 2."""
    return tuple(Parts(learning, ranks, rank) for rank in fullest_ranks(learning, ranks))


def _update(engine: Engine, way: Way, parts: Sequence[Parts], learning: Sequence[Tensor], elements: int) -> int:
    """Return what the update makes beside the states and the gradients that it finds.

    - Stage 0: gradients in fp32, with AdamW end to end besides (fused_optimizer.py, 252; unfused_optimizer.py, 179).
    - Stages 1 and 2: the norm of a gradient at a time in fp64, then the part end to end, and in fp32
      (stage_1_and_2.py, 2648 and 3104).
    - Stage 3: likewise for each sub-group of parts (stage3.py, 2873).
    """
    if way.offload:
        return 0
    if way.stage == WHOLE:
        return FP32_BYTES * elements * (1 if engine.keeps_copies_apart else 2)
    if way.stage < WEIGHTS_DIVIDED:
        at_once, several = parts[0].each, any(len(part.slices) > 1 for part in parts)
        largest = max((size for part in parts for size in part.slices), default=0)
        return max((engine.size * several + FP32_BYTES) * at_once, NORM_BYTES * largest)
    sizes = [-(-tensor.elements // way.ranks) for tensor in learning]
    groups = list(runs_beyond(sizes, SUB_GROUP_ELEMENTS - 1))
    updated = max((sum(group) * (FP32_BYTES + engine.size * (len(group) > 1)) for group in groups), default=0)
    return max(updated, NORM_BYTES * max(sizes, default=0))
