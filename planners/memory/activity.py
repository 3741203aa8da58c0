"""Activations of every row: kept, thrown away and computed again, per micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planners.layout.candidates import ALL_LAYERS, FULL, SELECTIVE, Candidates, FloatArray
from planners.layout.experts import busiest_rank_multiple, expert_tensor_ranks
from planners.memory.activations import (
    KeptBytes,
    checkpoint_width,
    kept_bytes,
    meeting_gradients,
    selectively_kept_bytes,
)
from planners.memory.holdings import adapter_activation_bytes
from planners.memory.job import Job
from planners.memory.recurrent import scan_workspace_bytes
from planners.memory.stages import StageRows

# Liger-Kernel, ops/fused_linear_cross_entropy.py: tokens are cut so that a chunk of logits is about as large as the
# hidden states; a chunk lives in 16 bits and in fp32, beside the gradients of hidden states and head.
FUSED_CHUNK_BYTES = 2 + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Bytes a row's activations need.

    `stage` is what all its layers keep of one micro-batch, `layer` and
    `checkpoint` what a layer keeps and what a fully recomputed one keeps,
    `recomputed_layers` how many are, `working_set` one layer with everything,
    `transient` the gradients that meet inside a layer's backward pass, `gathered`
    the buffers that tensor parallelism gathers into and scatters from.
    """

    stage: FloatArray
    layer: FloatArray
    checkpoint: FloatArray
    recomputed_layers: FloatArray
    working_set: FloatArray
    transient: FloatArray
    head: FloatArray
    logits: FloatArray
    gathered: FloatArray


def activity(layouts: Candidates, rows: StageRows, job: Job) -> Activity:
    """Return the activations of every row."""
    profile, size = job.profile, job.precision.compute_bytes
    tokens = layouts.local_tokens(job.sequence_length)[rows.owner]
    tensor = layouts.tensor_parallel[rows.owner].astype(np.float64)
    sequence_division = np.where(layouts.sequence_parallel[rows.owner], tensor, 1.0)
    # Ranks that cut an expert among them gather the tokens that were sent to it.
    dispatch_division = np.maximum(sequence_division / expert_tensor_ranks(layouts, job)[rows.owner], 1.0)
    busiest = busiest_rank_multiple(layouts, job)[rows.owner]

    def on_rank(kept: KeptBytes) -> FloatArray:
        scores = kept.score_bytes * job.sequence_length
        divided = kept.sequence_bytes / sequence_division + (kept.tensor_bytes + scores) / tensor
        sent = kept.dispatched_bytes / dispatch_division + kept.expert_bytes / tensor
        result: FloatArray = tokens * (kept.gathered_bytes + divided + busiest * sent)
        return result

    mode = layouts.recompute[rows.owner]
    is_selective = mode == SELECTIVE
    wanted = layouts.full_layers[rows.owner]
    limited = np.where(wanted == ALL_LAYERS, rows.layers, np.minimum(wanted, rows.layers))
    recomputed = np.where(mode == FULL, limited, 0).astype(np.float64)
    everything = np.zeros(rows.owner.size)
    working_set, checkpoint, transient = np.zeros_like(everything), np.zeros_like(everything), np.zeros_like(everything)
    for count, part in zip(rows.layers_of_kind, job.layers, strict=True):
        block = part.block
        whole = kept_bytes(
            block,
            profile.kernels,
            attention=job.attention,
            element_bytes=size,
            learning=part.learning,
            frozen_input_bytes=profile.kernels.four_bit_input_bytes if job.method == "qlora" else 0,
        )
        full = on_rank(replace(whole, sequence_bytes=whole.sequence_bytes + adapter_activation_bytes(part, job)))
        kept = full
        if is_selective.any():
            selective = on_rank(
                selectively_kept_bytes(
                    block,
                    profile.kernels,
                    policy=profile.can.selective_policy,
                    attention=job.attention,
                    element_bytes=size,
                )
            )
            kept = np.where(is_selective, selective, full)
        everything = everything + count * kept
        working_set = np.maximum(working_set, full)
        checkpoint = np.maximum(checkpoint, tokens * checkpoint_width(block) * size / sequence_division)
        widest, count_meeting = meeting_gradients(block, part.learning, experts_in_turn=profile.kernels.experts_in_turn)
        meeting = count_meeting * busiest * widest / tensor + checkpoint_width(block) / sequence_division
        transient = np.maximum(transient, tokens * size * meeting)
        transient = np.maximum(transient, tokens * scan_workspace_bytes(block, size) / tensor)
    layer = everything / np.maximum(rows.layers, 1)
    head = on_rank(
        kept_bytes(
            job.head.block, profile.kernels, attention=job.attention, element_bytes=size, learning=job.head.learning
        )
    )
    return Activity(
        stage=layer * (rows.layers - recomputed) + checkpoint * recomputed,
        layer=layer,
        checkpoint=checkpoint,
        recomputed_layers=recomputed,
        working_set=working_set,
        transient=transient if profile.kernels.backward_transients else np.zeros_like(transient),
        head=np.where(rows.has_head, head, 0.0),
        logits=np.where(rows.has_head, _logits(layouts, rows, job, tokens, tensor), 0.0),
        gathered=np.where(
            sequence_division > 1, tokens * job.model.hidden_size * profile.kernels.gathered_workspace_bytes, 0.0
        ),
    )


def _logits(layouts: Candidates, rows: StageRows, job: Job, tokens: FloatArray, tensor: FloatArray) -> FloatArray:
    """Return logits, their upcast and their gradient at the worst moment, or one chunk of a fused loss."""
    model, loss = job.model, job.profile.loss
    division = tensor if loss.vocabulary_parallel else 1.0
    accumulates = layouts.micro_batches(job.global_batch_size)[rows.owner] > 1
    whole = np.where(
        (division > 1) if loss.vocabulary_parallel else False, loss.divided_logits_bytes, loss.logits_bytes
    )
    held = whole + np.where(accumulates, loss.kept_logits_bytes, 0)
    plain = tokens * model.vocabulary_size * held / division
    chunks = np.ceil(model.vocabulary_size / model.hidden_size)
    chunk_tokens = 2.0 ** np.ceil(np.log2(np.maximum(np.ceil(tokens / chunks), 1.0)))
    fused = np.minimum(chunk_tokens, tokens) * model.vocabulary_size * FUSED_CHUNK_BYTES
    gradients = job.precision.compute_bytes * model.hidden_size * (tokens + model.vocabulary_size)
    result: FloatArray = np.where(layouts.fused_cross_entropy[rows.owner], fused + gradients, plain)
    return result
