"""What a pipeline's stages hold of what they send each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import FULL, SELECTIVE, BoolArray, Candidates, FloatArray, any_of
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.activations import has_layer_norms
from plimsoll.planners.memory.steps.on_rank import NO_BYTES


def p2p_buffer_bytes(layouts: Candidates, rows: StageRows, job: Job, p2p_message: FloatArray) -> FloatArray:
    """Return what every stage holds beside what its layers keep, `p2p_message` the bytes of one micro-batch's.

    torch has a buffer for every micro-batch that a stage receives and one for every gradient, from the first step on,
    and holds each output from its forward to its backward pass (torch, distributed/pipelining/stage.py,
    `_setup_forward_recv_info`, `_create_grad_recv_info`, `fwd_cache`). A layer that keeps its input keeps a buffer
    and no copy.
    """
    pipelined = layouts.pipeline_parallel > 1
    if not job.profile.kernels.pipelines_keep_messages or not any_of(pipelined):
        return NO_BYTES
    chunks = layouts.virtual_pipeline
    micro_batches = layouts.micro_batches(job.global_batch_size)
    receiving = chunks - rows.has_embedding
    sending = chunks - rows.has_head
    in_flight = rows.in_flight
    buffers = micro_batches * (receiving + sending) + in_flight * sending
    keeps_input = _recomputes_lowest(layouts, job) | (layouts.recompute == SELECTIVE) | keeps_first_input(job)
    shared = np.where(keeps_input, in_flight * receiving, 0.0)
    return np.where(pipelined, p2p_message * (buffers - shared), 0.0)


def _recomputes_lowest(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a stage's lowest layer is computed again: the first of those in a block, none of every nth."""
    if job.recompute_every not in (None, 1):
        return np.zeros(1, dtype=bool)
    recomputes: BoolArray = (layouts.recompute == FULL) & (layouts.full_layers != 0)
    return recomputes


def received_gradient_bytes(layouts: Candidates, rows: StageRows, job: Job, p2p_message: FloatArray) -> FloatArray:
    """Return the gradient that a stage's backward pass begins with, and holds until it is over.

    Source: Megatron-Core, pipeline_parallel/schedules.py, `forward_backward_pipelining_without_interleaving`
    (`output_tensor_grad`); of torch it lies in one of the buffers.
    """
    if job.profile.is_textbook:
        return NO_BYTES
    return np.where((layouts.pipeline_parallel > 1) & ~rows.has_head, p2p_message, 0.0)


@dataclass(frozen=True, slots=True)
class BesidePasses:
    """Messages beside a pass of an interleaved stage, in numbers of them, while passes take turns.

    `turn` is the output of the forward pass that has just been, and as much the input of the next one, which has been
    received already. `stale` are inputs that have been differentiated, each with its gradient: the one that was
    received as the pipeline was full, which a variable holds for the rest of the step, and the last of each chunk that
    no forward pass has gone through since.
    """

    turn: BoolArray
    stale: FloatArray


def beside_interleaved_passes(layouts: Candidates, rows: StageRows, job: Job) -> BesidePasses:
    """Return what Megatron-Core's schedule holds on to where sends and receipts overlap.

    Source: Megatron-Core, pipeline_parallel/schedules.py, `forward_backward_pipelining_with_interleaving`:
    `pp_post_forward` receives, the next `pp_pre_forward` deallocates, and `input_tensor` is last set as the pipeline
    has been filled; transformer/transformer_block.py, `set_input_tensor`.
    """
    stages, chunks = layouts.pipeline_parallel, layouts.virtual_pipeline
    if chunks.max(initial=1) == 1:
        return BesidePasses(turn=np.zeros(1, dtype=bool), stale=np.zeros(1))
    ahead = 2 * (stages - 1 - rows.stage) + (chunks - 1) * stages
    rounds, rest = np.divmod(ahead, stages * chunks)
    # Backward passes take the chunks in the opposite order.
    differentiated = rounds * stages * chunks + (chunks - 1 - rest // stages) * stages + rest % stages
    turns = layouts.micro_batches(job.global_batch_size) * chunks - ahead
    is_interleaved = chunks > 1
    stale = (~rows.has_embedding & (turns > differentiated + 1)).astype(np.int64)
    for chunk in range(1, int(chunks.max())):
        # A loss is that of the highest chunk, when each of the others has just been gone through.
        is_left = (2 * chunk * stages > ahead) & (chunk < chunks) & (turns > (chunks - chunk) * stages)
        stale = stale + (is_left & ~rows.has_head)
    return BesidePasses(turn=is_interleaved & (turns > 1), stale=np.where(is_interleaved, 2.0 * stale, 0.0))


def keeps_first_input(job: Job) -> bool:
    """Return whether a layer keeps its input as it came, and its first norm no copy in fp32.

    Layers that norm what they add to the residual multiply the input itself (OLMo 2).
    """
    block = job.layers[0].block
    begins_with_norm = block.operations[0].kind is OperationKind.NORM
    return not (job.profile.kernels.norm_keeps_fp32 and begins_with_norm) or has_layer_norms(block)
