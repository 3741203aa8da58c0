"""The quantities of a step of DeepSpeed's engine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import FULL, BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory.activations import has_dropout
from plimsoll.planners.memory.nvme import SUB_GROUP_ELEMENTS
from plimsoll.planners.memory.programs.at_rest import at_rest
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.sharded_stage import _embedded, _logits_gradient
from plimsoll.planners.memory.programs.stage_layers import layer_of_kind
from plimsoll.planners.memory.programs.zero_engine import Pass, ZeroEngineStage
from plimsoll.planners.memory.programs.zero_reduction import (
    DividedAsTheyCome,
    Kept,
    Parts,
    Reduction,
    ScatteredAsTheyCome,
    Sending,
    divided_at_boundary,
    runs_beyond,
    whole_at_boundary,
)
from plimsoll.planners.memory.programs.zero_tensors import Tensor, model_tensors
from plimsoll.planners.memory.programs.zero_walk import EMBEDDING, HEAD, Passage, persistent_elements, script, walk
from plimsoll.planners.memory.steps.layers import Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import LayerOnRank, Moment, Traffic
from plimsoll.planners.stacks.records import ZeroBuckets

PARAMETERS_TOO = 2  # of what is offloaded
WHOLE, OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED, WEIGHTS_DIVIDED = range(4)
# `get_norm_dtype`: the norm of each gradient is taken in fp64.
NORM_BYTES = 8
LEAF_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
EMPTY = Passage()


@dataclass(frozen=True, slots=True)
class _Way:
    """All of a layout that decides what the engine does with tensors."""

    stage: int
    ranks: int
    expert_parallel: int
    adds_up: bool
    is_recomputed: bool
    offload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
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
class _Followed:
    """What one way takes, in bytes: of each layer the most forwards, what is left, the moments, and what is left."""

    layers: FloatArray
    parts: dict[int, tuple[Passage, Passage]]
    flush: int
    at_boundary: int
    touched: int
    staged: int
    persistent: int
    update: int


def zero_engine_stage(asked: Question) -> ZeroEngineStage:
    """Return the quantities of the program."""
    layouts, job, held, active = asked.layouts, asked.job, asked.held, asked.active
    told = job.profile.zero
    if told is None:
        raise ValueError(f"{job.profile.name} has no engine with buckets.")
    size, zero_stage = job.precision.compute_bytes, layouts.zero_stage
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    followed, inverse = _followed(asked, told, accumulates)
    spread = functools.partial(_spread, followed, inverse)
    bucket = float(size * told.reduce_bucket_elements)
    gradients = np.ceil(held.gradients)
    touched = spread(lambda way: way.touched)
    is_flat = (zero_stage == OPTIMIZER_DIVIDED) | (zero_stage == GRADIENTS_DIVIDED)
    sends = layouts.offload > 0
    reduced = np.where(is_flat, touched, np.where(sends & (zero_stage == WEIGHTS_DIVIDED), 0.0, gradients))
    kept = np.where(zero_stage == GRADIENTS_DIVIDED, touched, gradients)
    rest = at_rest(asked, keeps_gradients=accumulates)
    head_gradient = np.ceil(size * held.head_matrix_elements)
    message = np.ceil(active.p2p_message)

    def of_part(part: int, place: int) -> Pass:
        return Pass(
            most=spread(lambda way: size * max(way.parts[part][place].most)),
            left=spread(lambda way: size * way.parts[part][place].left),
        )

    return ZeroEngineStage(
        rest=replace(
            rest,
            kept_gradients=np.where(accumulates | (zero_stage == WEIGHTS_DIVIDED), kept, 0.0),
            all_gradients=reduced,
            temporaries=rest.temporaries + spread(lambda way: way.update),
        ),
        layers=_layers(asked, followed, inverse),
        resting=np.where(zero_stage == WEIGHTS_DIVIDED, bucket, spread(lambda way: way.staged)),
        bucket_before=np.where((zero_stage == OPTIMIZER_DIVIDED) & accumulates, bucket, 0.0),
        bucket=np.where(is_flat, bucket, 0.0),
        persistent=spread(lambda way: way.persistent),
        embedding=of_part(EMBEDDING, 0),
        head=of_part(HEAD, 0),
        head_back=of_part(HEAD, 1),
        embedding_back=of_part(EMBEDDING, 1),
        flush=spread(lambda way: way.flush),
        at_boundary=spread(lambda way: way.at_boundary),
        message=message,
        embedded=np.ceil(_embedded(asked)),
        unsaved=np.ceil(active.first_adapter_savings),
        head_kept=np.ceil(active.head),
        logits=np.ceil(active.logits),
        kept_logits=np.ceil(active.kept_logits),
        logits_gradient=_logits_gradient(asked, head_gradient),
        head_gradient=head_gradient,
        tied=head_gradient if job.model.tied_head else np.zeros(1),
    )


def _followed(asked: Question, told: ZeroBuckets, accumulates: BoolArray) -> tuple[tuple[_Followed, ...], IntArray]:
    """Return what each distinct way takes, and which way each layout goes."""
    layouts, job = asked.layouts, asked.job
    stage = layouts.zero_stage
    columns = (
        stage,
        layouts.shard_group,
        layouts.expert_parallel,
        (((stage <= OPTIMIZER_DIVIDED) | (layouts.offload > 0)) & accumulates).astype(np.int64),
        ((stage == WEIGHTS_DIVIDED) & (layouts.recompute == FULL)).astype(np.int64),
        layouts.offload,
    )
    spans = [int(column.max(initial=0)) + 1 for column in columns]
    keys, inverse = distinct(np.ravel_multi_index(np.broadcast_arrays(*columns), spans))
    ways = zip(*(column.tolist() for column in np.unravel_index(keys, spans)), strict=True)
    model = _model(job, told)
    return tuple(
        _follow(model, _Way(*way[:3], adds_up=bool(way[3]), is_recomputed=bool(way[4]), offload=way[5])) for way in ways
    ), inverse


def _spread(followed: Sequence[_Followed], inverse: IntArray, quantity: Callable[[_Followed], float]) -> FloatArray:
    return np.array([quantity(way) for way in followed], dtype=np.float64)[inverse]


def _model(job: Job, told: ZeroBuckets) -> _Model:
    return _Model(
        embedding=job.embedding,
        layers=job.layers,
        head=job.head,
        is_tied=job.model.tied_head,
        has_dropout=any(has_dropout(part.block) for part in job.layers),
        has_leaves=job.model.model_type in LEAF_MIXTURES,
        size=job.precision.compute_bytes,
        moment_bytes=job.states.moment * min(job.optimizer.moments, job.optimizer.hidden_matrix_moments),
        to_drives=job.offload_target == "nvme",
        keeps_copies_apart=job.optimizer.name != "adamw",
        bucket=told.reduce_bucket_elements,
        gathering=(told.max_live_elements, told.prefetch_bucket_elements),
    )


@functools.lru_cache(maxsize=4096)
def _follow(model: _Model, way: _Way) -> _Followed:
    tensors = model_tensors(model.embedding, model.layers, model.head, way.expert_parallel)
    learning = list(tensors.learning())
    elements = sum(tensor.elements for tensor in learning)
    parts = Parts(learning, way.ranks)
    sending = None
    if way.offload:
        cast = FP32_BYTES // model.size
        sending = Sending(
            norm=NORM_BYTES // model.size,
            cast=cast,
            adds_up=way.adds_up,
            all_at_once=cast if model.to_drives else 0,
        )
    of_stage: dict[int, Callable[[], Reduction]] = {
        GRADIENTS_DIVIDED: lambda: DividedAsTheyCome(learning, parts, model.bucket, sending),
        WEIGHTS_DIVIDED: lambda: ScatteredAsTheyCome(way.ranks, model.bucket, sending),
    }
    reduction = of_stage.get(way.stage, lambda: Kept(adds_up=way.adds_up))()
    is_sharded = way.stage == WEIGHTS_DIVIDED
    gathers = is_sharded and (way.ranks > 1 or way.offload == PARAMETERS_TOO)
    events = script(
        tensors,
        model.gathering if gathers else None,
        is_tied=model.is_tied,
        is_recomputed=way.is_recomputed,
        has_leaves=model.has_leaves and is_sharded,
        has_dropout=model.has_dropout,
        bias_first=not is_sharded,
    )
    moments = 0 if way.offload else sum(-(-tensor.elements // way.ranks) for tensor in learning) * model.moment_bytes
    pulled_by = way.ranks if way.offload == PARAMETERS_TOO else None
    done = walk(events, reduction, spared=moments // model.size, pulled_by=pulled_by)
    boundary = {
        WHOLE: lambda: whole_at_boundary(learning),
        OPTIMIZER_DIVIDED: lambda: divided_at_boundary(learning, parts, model.bucket, sending) - elements,
    }
    size = model.size
    of_layer = [
        (done.forward.get(number, EMPTY), done.backward.get(number, EMPTY)) for number in range(len(tensors.layers))
    ]
    return _Followed(
        layers=size * np.array([(max(fore.most), fore.left, *back.most, back.left) for fore, back in of_layer]),
        parts={part: (done.forward.get(part, EMPTY), done.backward.get(part, EMPTY)) for part in (EMBEDDING, HEAD)},
        flush=size * (done.end - done.before_end),
        at_boundary=size * boundary.get(way.stage, lambda: 0)(),
        touched=0 if sending else size * parts.touched,
        staged=size * max((tensor.elements for tensor in learning), default=0) if sending and not is_sharded else 0,
        persistent=size * persistent_elements(tensors) if gathers else 0,
        update=_update(model, way, parts, learning, elements),
    )


def _update(model: _Model, way: _Way, parts: Parts, learning: Sequence[Tensor], elements: int) -> int:
    """Return what the update makes beside the states and the gradients that it finds.

    - Stage 0: gradients in fp32, with AdamW end to end besides (fused_optimizer.py, 252; unfused_optimizer.py, 179).
    - Stages 1 and 2: the norm of a gradient at a time in fp64, then the part end to end, and in fp32
      (stage_1_and_2.py, 2648 and 3104).
    - Stage 3: likewise for each sub-group of parts (stage3.py, 2873).
    """
    if way.offload:
        return 0
    if way.stage == WHOLE:
        return FP32_BYTES * elements * (1 if model.keeps_copies_apart else 2)
    if way.stage < WEIGHTS_DIVIDED:
        at_once, slices = parts.each, parts.slices
        copy = model.size * at_once if len(slices) > 1 else 0
        return max(copy + FP32_BYTES * at_once, NORM_BYTES * max(slices, default=0))
    sizes = [-(-tensor.elements // way.ranks) for tensor in learning]
    groups = list(runs_beyond(sizes, SUB_GROUP_ELEMENTS - 1))
    updated = max((sum(group) * (FP32_BYTES + model.size * (len(group) > 1)) for group in groups), default=0)
    return max(updated, NORM_BYTES * max(sizes, default=0))


def _layers(asked: Question, followed: Sequence[_Followed], inverse: IntArray) -> Layers:
    """Return the layers, in runs of those that take the same in every layout."""
    job = asked.job
    kinds = sorted((number, kind) for kind, part in enumerate(job.layers) for number in part.block.layers)
    table = np.stack([way.layers for way in followed])
    alike = itertools.groupby(kinds, key=lambda entry: (entry[1], table[:, entry[0]].tobytes()))
    runs = []
    for (kind, _), numbers in alike:
        of_run = [number for number, _ in numbers]
        columns = np.moveaxis(table[:, of_run[0]], 1, 0).astype(np.float64)
        layer = _layer(asked, kind, [column[inverse] for column in columns])
        runs.append(Run(unit=(layer,), count=np.array([len(of_run)])))
    return layers_of(runs)


def _layer(asked: Question, kind: int, taken: Sequence[FloatArray]) -> LayerOnRank:
    layer = layer_of_kind(asked, kind)
    forward, left_forward, *moments, left = taken
    return replace(
        layer,
        moments=_moments(asked, kind, layer, moments),
        traffic=Traffic(forward=forward, left_forward=left_forward, left=left),
    )


def _moments(asked: Question, kind: int, layer: LayerOnRank, taken: Sequence[FloatArray]) -> tuple[Moment, ...]:
    """Return the moments of a layer's backward pass with what the engine holds at each."""
    job, own = asked.job, asked.active.layers[kind].backward
    last, feed_forward, output, attention = taken
    meeting = layer.moments[-1].activations
    is_mixture = bool(job.model.experts_per_token)
    at_last = meeting if is_mixture else np.ceil(own.working_set + own.last_matmul_gradients)
    at_first = own.at_expert_matmuls if is_mixture else own.at_second_norm + 2.0 * own.last_matmul_gradients
    made = [Moment("last matrix", at_last, last)]
    if is_mixture:
        made.insert(0, Moment("outputs' gradient", np.ceil(own.at_combine), np.zeros(1)))
    else:
        made.append(Moment("gradients that meet", meeting, np.zeros(1)))
    return (
        *made,
        Moment("first matrices", np.ceil(np.minimum(at_first, meeting)), feed_forward),
        Moment("second norm", np.ceil(own.at_second_norm), output),
        Moment("attention", np.ceil(np.maximum(own.attention_gradients, own.at_input_norm)), attention),
    )
