"""What DTensor makes whole of a sequence that tensor-parallel ranks have a part of each.

Each half of a layer gathers its input, which its first matrices keep, and scatters its output; backwards the output's
gradient is gathered, and every first matrix makes one of the whole input. A gather or scatter along the sequence is a
copy besides, since collectives go along the first dimension (torch, distributed/_functional_collectives.py,
`all_gather_tensor` and `reduce_scatter_tensor`).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from plimsoll.planners.architecture import Block, Operation, OperationKind
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import BlockWeights
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray, any_of
from plimsoll.planners.memory.activations import SavedBytes, checkpoint_width, saved_bytes
from plimsoll.planners.memory.activity import LayerActivity
from plimsoll.planners.memory.eager_attention import attentions_of
from plimsoll.planners.memory.holdings import LayerHoldings
from plimsoll.planners.memory.p2p_buffers import keeps_first_input
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.rank_share import rank_share
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment
from plimsoll.planners.stacks.profile import Profile

# What a collective along the sequence makes, with its copy.
WITH_COPY = 2
GATHERED_AND_GRADIENT = 2
# Gradients of one input that meet, each made by a matrix of its own: the sum so far, the next one, and the new sum.
MEETING = 3
MOST_KEPT_LAYERS = 4096


class AtFirstProducts(NamedTuple):
    """A token's bytes as the gradients of a gathered input meet, in the feed-forward and in the attention.

    `attention_output` is as the attention's last matrix is about to be differentiated. None where a layer has no such
    half.
    """

    feed_forward: SavedBytes | None
    attention_output: SavedBytes | None
    attention: SavedBytes | None


def are_whole(asked: Question) -> BoolArray:
    """Return which layouts gather sequences in each half of a layer, and keep what they gathered."""
    layouts = asked.layouts
    is_split: BoolArray = layouts.sequence_parallel & (layouts.tensor_parallel > 1)
    return is_split & np.bool_(asked.job.profile.kernels.keeps_gathered_inputs)


def whole_stream(asked: Question) -> FloatArray:
    """Return the bytes of the residual stream of a whole micro-batch."""
    job = asked.job
    tokens = asked.layouts.local_tokens(job.sequence_length)
    return np.ceil(tokens * (job.precision.compute_bytes * job.model.hidden_size))


def before_scatter(asked: Question, own: LayerActivity, recomputes: BoolArray) -> FloatArray:
    """Return what a layer's forward pass ends with beside what it keeps, as its output is scattered.

    A layer that is computed again keeps neither its gathered input nor what its last matrix multiplies.
    """
    split = are_whole(asked)
    if not any_of(split):
        return NO_BYTES
    inner = own.backward.last_matmul_gradients - asked.active.p2p_message
    again = np.where(recomputes, whole_stream(asked) + inner, 0.0)
    return np.where(split, np.ceil(_at_scatter(asked) + again), 0.0)


def moments_of_gathered(asked: Question, held: LayerHoldings, own: LayerActivity) -> list[Moment]:
    """Return the moments of a dense layer's backward pass at which Megatron-Core gathers along a split sequence.

    The last matrix's output has its whole gradient gathered; the first matrices have their input gathered again beside
    the whole gradient that they make of it, and the part that this is scattered to (core/tensor_parallel/layers.py,
    `LinearWithGradAccumulationAndAsyncCommunication`).
    """
    layouts, job = asked.layouts, asked.job
    split = layouts.sequence_parallel & (layouts.tensor_parallel > 1)
    if not any_of(split):
        return []
    stream, message = whole_stream(asked), asked.active.p2p_message
    inner = layouts.local_tokens(job.sequence_length) * job.precision.compute_bytes
    inner = inner * held.last_matrix / job.model.hidden_size
    at_last = own.backward.working_set + stream + inner + message
    at_first = own.backward.working_set - inner + GATHERED_AND_GRADIENT * stream + 2.0 * message
    return [
        Moment("last matrix of a whole sequence", np.where(split, at_last, 0.0), NO_BYTES),
        Moment("first matrices of a whole sequence", np.where(split, at_first, 0.0), NO_BYTES),
    ]


def _at_scatter(asked: Question) -> FloatArray:
    """Return a layer's whole output and its copy; the norm's output, the stream between the halves, the rank's part."""
    parts = 2.0 if keeps_first_input(asked.job) else 3.0
    result: FloatArray = WITH_COPY * whole_stream(asked) + parts * asked.active.p2p_message
    return result


def moments_of_whole(
    asked: Question,
    kind: int,
    held: LayerHoldings,
    own: LayerActivity,
    gradient_bytes: FloatArray,
    recomputes: BoolArray,
) -> list[Moment]:
    """Return the moments of a layer's backward pass at which parts of it stand whole; nothing of unsplit sequences.

    A layer's second run goes on to its output, whose gradient has been gathered by then.
    """
    split = are_whole(asked)
    if not any_of(split):
        return []
    job, backward = asked.job, own.backward
    stream, message, size = whole_stream(asked), asked.active.p2p_message, job.precision.compute_bytes
    share = rank_share(asked.layouts, job)
    live = _at_first_products(job.layers[kind], ByIdentity(job.profile), job.attention, size)

    def where_split(name: str, activations: FloatArray, gradients: FloatArray) -> Moment:
        return Moment(name, np.where(split, activations, 0.0), np.where(split, gradients, 0.0))

    moments = [where_split("output's gradient gathered", backward.working_set + WITH_COPY * stream + message, NO_BYTES)]
    again = np.where(recomputes, backward.working_set + stream + message + _at_scatter(asked), 0.0)
    moments.append(where_split("output of the second run before its scatter", again, NO_BYTES))
    if not job.model.experts_per_token:
        last = backward.working_set + backward.last_matmul_gradients + stream
        moments.append(where_split("last matrix of a whole sequence", last, size * held.last_matrix))
    behind, behind_attention = gradient_bytes * held.feed_forward, gradient_bytes * held.behind_attention
    for name, saved, gradients in (
        ("whole gradients of the feed-forward's input", live.feed_forward, behind),
        ("attention's output's gradient gathered", live.attention_output, behind),
        ("whole gradients of the attention's input", live.attention, behind_attention),
    ):
        if saved is not None:
            moments.append(where_split(name, share.of(saved) + message, gradients))
    return moments


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def _at_first_products(part: BlockWeights, same: ByIdentity[Profile], attention: str, size: int) -> AtFirstProducts:
    block = part.block

    def live(operations: int, streams: int, inner: int) -> SavedBytes:
        before = replace(block, operations=block.operations[:operations])
        saved = saved_bytes(before, same.value.kernels, attention=attention, element_bytes=size, learning=part.learning)
        return replace(
            saved,
            gathered_bytes=saved.gathered_bytes + streams * size * checkpoint_width(block),
            tensor_bytes=saved.tensor_bytes + size * inner,
        )

    widths = {tensor.name: tensor.width for tensor in block.tensors}
    attentions, norms = attentions_of(block), _gathered_norms(block)
    of_attention = feed_forward = output = None
    if attentions and norms and not _has_latents(block):
        place = block.operations.index(attentions[0])
        output = live(place + 1, WITH_COPY, 0)
        first, last = norms[0], norms[-1]
        readers = _readers(block, first)
        of_attention = live(block.operations.index(first) + 1, _streams(readers), widths[readers[0].output])
        if last is not first:
            readers = _readers(block, last)
            inner = widths[readers[0].output]
            feed_forward = live(block.operations.index(last) + 1, _streams(readers), inner)
    return AtFirstProducts(feed_forward=feed_forward, attention_output=output, attention=of_attention)


def _gathered_norms(block: Block) -> list[Operation]:
    """Return the norms whose output the first matrices of a half read."""
    norms = [op for op in block.operations if op.kind is OperationKind.NORM and not op.heads]
    return [norm for norm in norms if _readers(block, norm)]


def _readers(block: Block, norm: Operation) -> list[Operation]:
    matrices = (op for op in block.operations if op.kind is OperationKind.MATMUL and not op.is_row_parallel)
    return [op for op in matrices if norm.output in op.inputs and not op.name.startswith(("router", "expert"))]


def _streams(readers: list[Operation]) -> int:
    """Return how many streams of a whole sequence stand together: the gathered input, and gradients that meet."""
    return 1 + min(len(readers), MEETING)


def _has_latents(block: Block) -> bool:
    return any(op.key_dim != op.value_dim for op in attentions_of(block))
