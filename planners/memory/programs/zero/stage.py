"""The quantities of a step of DeepSpeed's engine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from plimsoll.planners.architecture import Operation, OperationKind
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import FULL, BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory import secondary_shards
from plimsoll.planners.memory.activations import NOTHING_SAVED, saved_bytes
from plimsoll.planners.memory.eager_attention import attentions_of, has_scores, softmax_bytes
from plimsoll.planners.memory.programs.at_rest import at_rest
from plimsoll.planners.memory.programs.beside_policy import beside_policy
from plimsoll.planners.memory.programs.logits import differentiated_logits, forward_logits, logits_gradient
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.sharded_stage import embedding_output
from plimsoll.planners.memory.programs.stage_layers import layer_of_kind
from plimsoll.planners.memory.programs.zero.engine import Pass, ZeroEngineStage
from plimsoll.planners.memory.programs.zero.script import EMBEDDING, HEAD
from plimsoll.planners.memory.programs.zero.tensors import At, tensors_of
from plimsoll.planners.memory.programs.zero.ways import (
    GRADIENTS_DIVIDED,
    OPTIMIZER_DIVIDED,
    WEIGHTS_DIVIDED,
    Followed,
    Way,
    engine_of,
    follow,
)
from plimsoll.planners.memory.rank_share import rank_share
from plimsoll.planners.memory.steps.layers import Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, NO_TRAFFIC, LayerOnRank, Moment, only, opposite, some
from plimsoll.planners.stacks.records import ZeroBuckets

# What the architecture calls the operations of experts.
EXPERT = "expert"
# Where a part's most is, and what is left of it.
FORWARDS, BACKWARDS = (slice(0, 1), 1), (slice(2, -1), -1)


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

    def of_part(part: int, most: slice, left: int) -> Pass:
        return Pass(
            most=spread(lambda way: way.parts[part, most].max()),
            left=spread(lambda way: way.parts[part, left]),
        )

    return ZeroEngineStage(
        rest=replace(
            rest,
            kept_gradients=np.where(accumulates | (zero_stage == WEIGHTS_DIVIDED), kept, 0.0),
            all_gradients=reduced,
            temporaries=rest.temporaries + spread(lambda way: way.update),
        ),
        layers=_layers(asked, followed, inverse),
        sends_as_it_goes=zero_stage >= GRADIENTS_DIVIDED,
        resting=np.where(zero_stage == WEIGHTS_DIVIDED, bucket, spread(lambda way: way.staged)),
        bucket_before=np.where((zero_stage == OPTIMIZER_DIVIDED) & accumulates, bucket, 0.0),
        bucket=np.where(is_flat, bucket, 0.0),
        moments_before_bucket=_moments_before_gradients(job),
        persistent=spread(lambda way: way.persistent),
        second_copy_at_loss=np.ceil(secondary_shards.on_device_at_loss(layouts, job)),
        second_copy=np.ceil(secondary_shards.on_device(layouts, job)),
        embedding=of_part(EMBEDDING, *FORWARDS),
        head=of_part(HEAD, *FORWARDS),
        head_back=of_part(HEAD, *BACKWARDS),
        embedding_back=of_part(EMBEDDING, *BACKWARDS),
        flush=spread(lambda way: way.flush),
        at_boundary=spread(lambda way: way.at_boundary),
        message=message,
        embedded=some(np.ceil(embedding_output(asked))),
        unsaved=some(np.ceil(active.first_adapter_savings)),
        head_kept=np.ceil(active.head),
        forward_logits=forward_logits(asked),
        logits=differentiated_logits(asked),
        kept_logits=np.ceil(active.kept_logits),
        logits_gradient=logits_gradient(asked, head_gradient),
        head_gradient=head_gradient,
        tied=head_gradient if job.model.tied_head else np.zeros(1),
        companions=beside_policy(asked),
    )


def _followed(asked: Question, told: ZeroBuckets, accumulates: BoolArray) -> tuple[tuple[Followed, ...], IntArray]:
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
    engine = engine_of(job, told)
    ways = (column.tolist() for column in np.unravel_index(keys, spans))
    return tuple(
        follow(engine, Way(number, ranks, experts, bool(adds_up), bool(again), offload))
        for number, ranks, experts, adds_up, again, offload in zip(*ways, strict=True)
    ), inverse


def _moments_before_gradients(job: Job) -> int:
    """Return how many moments of the highest layer's backward pass there are before the first gradient of all."""
    if any(tensor.learns for tensor in tensors_of(job.head, 1)):
        return 0
    highest = max(job.layers, key=lambda part: max(part.block.layers, default=0))
    made = [tensor.at for tensor in tensors_of(highest, 1) if tensor.learns]
    times = (At.LAST, At.LAST, At.FEED_FORWARD, At.OUTPUT, At.ATTENTION)
    return times.index(min(made)) if made else len(times)


def _spread(followed: Sequence[Followed], inverse: IntArray, quantity: Callable[[Followed], float]) -> FloatArray:
    return np.array([quantity(way) for way in followed], dtype=np.float64)[inverse]


def _layers(asked: Question, followed: Sequence[Followed], inverse: IntArray) -> Layers:
    """Return the layers, in runs of those that take the same in every layout."""
    job = asked.job
    kinds = sorted((number, kind) for kind, part in enumerate(job.layers) for number in part.block.layers)
    table = np.stack([way.parts for way in followed])
    alike = itertools.groupby(kinds, key=lambda entry: (entry[1], table[:, entry[0]].tobytes()))
    layer_of = functools.cache(functools.partial(_layer, asked))
    runs = []
    for (kind, _), numbers in alike:
        of_run = [number for number, _ in numbers]
        columns = np.moveaxis(table[:, of_run[0]], 1, 0).astype(np.float64)
        layer = _with_traffic(*layer_of(kind), columns[:, inverse])
        runs.append(Run(unit=(layer,), count=np.array([len(of_run)])))
    return layers_of(runs)


def _layer(asked: Question, kind: int) -> tuple[LayerOnRank, Sequence[At | None]]:
    """Return a layer of a kind, and which of the engine's moments those of its backward pass are."""
    layer, inputs = layer_of_kind(asked, kind), _frozen_inputs(asked, kind)
    moments = _moments(asked, kind, layer, inputs)
    return replace(
        layer,
        kept=layer.kept + only(opposite(layer.is_recomputed), inputs),
        moments=tuple(Moment(name, activations, NO_BYTES) for name, activations, _ in moments),
        traffic=replace(NO_TRAFFIC, first_run=only(layer.is_recomputed, _first_run(asked, kind))),
    ), [at for _, _, at in moments]


def _with_traffic(layer: LayerOnRank, times: Sequence[At | None], taken: FloatArray) -> LayerOnRank:
    """Return a layer with what the engine holds beside it: most and left forwards, at each moment, and left."""
    forward, left_forward, *meanwhile, left = taken
    moments = [
        moment if at is None else moment._replace(gradients=meanwhile[at])
        for moment, at in zip(layer.moments, times, strict=True)
    ]
    traffic = replace(layer.traffic, forward=forward, left_forward=left_forward, left=left)
    return replace(layer, moments=tuple(moments), traffic=traffic)


def _first_run(asked: Question, kind: int) -> FloatArray:
    """Return what is live as the softmax of eager attention runs for the first time: scores, and what it reads them of.

    The scores with their mask, and the softmax's argument and result.
    """
    job = asked.job
    attentions = attentions_of(job.layers[kind].block)
    if not attentions or not has_scores(job.attention, job.profile.kernels):
        return NO_BYTES
    product, size = attentions[0], job.precision.compute_bytes
    live = replace(
        NOTHING_SAVED,
        tensor_bytes=float(size * product.heads * (2 * product.key_dim + product.value_dim)),
        score_bytes=float(product.heads * (size + 2 * softmax_bytes(product, size))),
    )
    return np.ceil(rank_share(asked.layouts, job).of(live))


def _frozen_inputs(asked: Question, kind: int) -> FloatArray:
    """Return the inputs that stage 3's own linear layer saves though its weight is frozen (runtime/zero/linear.py, 49).

    torch's saves none: the gradient of its input needs the weight alone. A mixture's grouped products are torch's.
    """
    layouts, job, part = asked.layouts, asked.job, asked.job.layers[kind]
    if part.learning is None:
        return NO_BYTES
    inputs = {name for operation in part.block.operations if _is_linear(operation) for name in operation.inputs}
    others = frozenset(tensor.name for tensor in part.block.tensors) - inputs
    size = job.precision.compute_bytes
    save = functools.partial(
        saved_bytes,
        part.block,
        job.profile.kernels,
        without=others,
        attention=job.attention,
        element_bytes=size,
        learning=part.learning,
    )
    share = rank_share(layouts, job)
    more = share.of(save(frozen_input_bytes=size)) - share.of(save())
    return np.where(layouts.zero_stage == WEIGHTS_DIVIDED, np.ceil(more), 0.0)


def _is_linear(operation: Operation) -> bool:
    return operation.kind is OperationKind.MATMUL and not operation.name.startswith(EXPERT)


def _moments(
    asked: Question, kind: int, layer: LayerOnRank, inputs: FloatArray
) -> list[tuple[str, FloatArray, At | None]]:
    """Return the moments of a layer's backward pass, what is live at each, and when they are for the engine.

    Frozen matrices' `inputs` are there until these have been multiplied by.
    """
    own = asked.active.layers[kind].backward
    meeting = layer.moments[0].activations + inputs
    at_norm = np.ceil(own.at_second_norm) + inputs
    at_attention = np.ceil(np.maximum(own.attention_gradients, own.at_input_norm)) + inputs
    made: list[tuple[str, FloatArray, At | None]]
    if asked.job.model.experts_per_token:
        at_first = own.at_expert_matmuls
        made = [("outputs' gradient", np.ceil(own.at_combine), None), ("last matrix", meeting, At.LAST)]
    else:
        at_first = own.at_second_norm + 2.0 * own.last_matmul_gradients
        at_last = np.ceil(own.working_set + own.last_matmul_gradients) + inputs
        made = [("last matrix", at_last, At.LAST), ("gradients that meet", meeting, None)]
    return [
        *made,
        ("first matrices", np.minimum(np.ceil(at_first) + inputs, meeting), At.FEED_FORWARD),
        ("second norm", at_norm, At.OUTPUT),
        ("attention", at_attention, At.ATTENTION),
    ]
