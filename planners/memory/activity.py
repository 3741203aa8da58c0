"""Activations of every stage: kept, thrown away and computed again, per micro-batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planners.identity import Same
from planners.layout.candidates import ALL_LAYERS, FULL, SELECTIVE, BoolArray, Candidates, FloatArray, once
from planners.layout.experts import busiest_rank_multiple, expert_tensor_ranks
from planners.memory.activations import (
    FP32_BYTES,
    KeptBytes,
    checkpoint_width,
    kept_bytes,
    meeting_gradients,
    norm_backward_bytes,
)
from planners.memory.holdings import adapter_activation_bytes, in_zero_stages
from planners.memory.job import BlockWeights, Job
from planners.memory.kept_again import KeptAgain, kept_again
from planners.memory.layer_moments import kept_at_second_norm, unneeded_bytes
from planners.memory.mixture_backward import kept_as_experts_are_reduced, kept_at_combine, kept_at_experts_first_product
from planners.memory.profile import Profile
from planners.memory.recurrent import scan_workspace_bytes
from planners.memory.selective import (
    exchanged_bytes,
    scattered_bytes,
    selective_input_bytes,
    selectively_kept_bytes,
    unused_bytes,
)
from planners.memory.stages import StageRows

# Liger-Kernel, ops/fused_linear_cross_entropy.py: tokens are cut so that a chunk of logits is about as large as the
# hidden states; a chunk lives in 16 bits and in fp32, beside the gradients of hidden states and head.
FUSED_CHUNK_BYTES = 2 + 4
# The kinds of layers of some hundred models, on a dozen stacks each.
MOST_KEPT_LAYERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Bytes a stage's activations need.

    `stage` is what all its layers keep of one micro-batch, `layer` and
    `checkpoint` what a layer keeps and what a fully recomputed one keeps,
    `recomputed_layers` how many are and `kept_layers` how many are not, `kept_twice` the tensors of a layer that
    several operations keep and `kept_again` the same as often as they come again (`kept_again.py`), `waiting` what is
    on its way to the host, `working_set` one layer with everything,
    `transient` the gradients that meet inside a layer's backward pass, `first_norm` what is left of them and of
    the layer as its first norm is differentiated, `second_norm` the same of the norm between its halves,
    `last_product` the gradients around a layer's last matrix, `message` what stages send each other, `unused` what
    selective recomputation keeps of the layer at work beside what it computes again, `unneeded` what a first layer of
    adapters does not keep, `experts_product` and `combine` what is there as the experts'
    first matrices and the sum of their outputs are, `experts_reduced` as their gradients are reduced, `gathered` the
    buffers that tensor parallelism gathers into and scatters from.
    """

    stage: FloatArray
    layer: FloatArray
    checkpoint: FloatArray
    recomputed_layers: FloatArray
    kept_layers: FloatArray
    kept_twice: FloatArray
    kept_again: FloatArray
    waiting: FloatArray
    working_set: FloatArray
    transient: FloatArray
    first_norm: FloatArray
    second_norm: FloatArray
    last_product: FloatArray
    message: FloatArray
    unused: FloatArray
    unneeded: FloatArray
    experts_product: FloatArray
    combine: FloatArray
    experts_reduced: FloatArray
    head: FloatArray
    logits: FloatArray
    gathered: FloatArray


def activity(layouts: Candidates, rows: StageRows, job: Job) -> Activity:
    """Return the activations of every stage of `rows`."""
    profile, size = job.profile, job.precision.compute_bytes
    tokens = layouts.local_tokens(job.sequence_length)
    tensor = layouts.tensor_parallel.astype(np.float64)
    sequence_division = np.where(layouts.sequence_parallel, tensor, 1.0)
    # Ranks that cut an expert among them gather the tokens that were sent to it.
    dispatch_division = np.maximum(sequence_division / expert_tensor_ranks(layouts, job), 1.0)
    busiest = busiest_rank_multiple(layouts, job)

    def on_rank(kept: KeptBytes) -> FloatArray:
        scores = kept.score_bytes * job.sequence_length
        divided = kept.sequence_bytes / sequence_division + (kept.tensor_bytes + scores) / tensor
        if kept.ring_bytes:
            divided = divided + np.where(layouts.context_parallel > 1, kept.ring_bytes / tensor, 0.0)
        if kept.dispatched_bytes or kept.expert_bytes:
            divided = divided + busiest * (kept.dispatched_bytes / dispatch_division + kept.expert_bytes / tensor)
        result: FloatArray = tokens * (kept.gathered_bytes + divided)
        return result

    mode = layouts.recompute
    is_selective = mode == SELECTIVE
    has_selective = bool(is_selective.any())
    wanted = layouts.full_layers
    if job.recompute_every is not None:
        wanted = rows.layers // job.recompute_every
    limited = np.where(wanted == ALL_LAYERS, rows.layers, np.minimum(wanted, rows.layers))
    recomputed = np.where(mode == FULL, limited, 0).astype(np.float64)
    casts = casts_weights(layouts, job) & np.bool_(job.method == "full")
    has_casts = bool(casts.any())
    # One number where nothing is cast, so that the kept inputs do not vary along the axis of stages for it.
    stream_bytes = np.where(casts, FP32_BYTES, size) if has_casts else size
    everything = kept_selectively = working_set = checkpoint = transient = first_norm = np.zeros(1)
    experts_product = combine = experts_reduced = second_norm = last_product = unused = np.zeros(1)
    twice = again = np.zeros(1)
    for count, part in zip(rows.layers_of_kind, job.layers, strict=True):
        layer = _layer_bytes(part, job)
        full = np.where(casts, on_rank(layer.cast), on_rank(layer.whole)) if has_casts else on_rank(layer.whole)
        everything = everything + count * full
        if has_selective:
            scattered = np.where(sequence_division > 1, tokens * layer.scattered_bytes / sequence_division, 0.0)
            exchanged: float | FloatArray = 0.0
            if layer.exchanged_bytes:
                sent = tokens * busiest * layer.exchanged_bytes / dispatch_division
                exchanged = np.where(layouts.expert_parallel > 1, sent, 0.0)
            kept_selectively = kept_selectively + count * (on_rank(layer.selective) + scattered + exchanged)
            whole_sum, own_sum = layer.unused_bytes
            sums_of_own = np.where(tensor > 1, tokens * own_sum / sequence_division, 0.0)
            own = tokens * (whole_sum + layer.selective_input_bytes / sequence_division) + sums_of_own
            unused = np.maximum(unused, np.where(is_selective, own, 0.0))
        working_set = np.maximum(working_set, full)
        checkpoint = np.maximum(checkpoint, tokens * layer.input_width * stream_bytes / sequence_division)
        first_norm = np.maximum(first_norm, tokens * layer.input_width * layer.first_norm_bytes / sequence_division)
        meeting = layer.meeting_gradients * busiest * layer.widest / tensor + layer.input_width / sequence_division
        transient = np.maximum(transient, tokens * size * meeting)
        one = busiest * layer.widest / tensor + layer.input_width / sequence_division
        last_product = np.maximum(last_product, tokens * size * one)
        second_norm = np.maximum(second_norm, on_rank(layer.second_norm))
        if job.model.experts_per_token:
            experts_product = np.maximum(experts_product, on_rank(layer.experts_product))
            combine = np.maximum(combine, on_rank(layer.combine))
            experts_reduced = np.maximum(experts_reduced, on_rank(layer.experts_reduced))
        if layouts.activation_offload.any():
            twice = twice + count * tokens * np.where(casts, layer.cast_again.once_bytes, layer.again.once_bytes)
            again = again + count * tokens * np.where(casts, layer.cast_again.again_bytes, layer.again.again_bytes)
        if layer.scan_workspace:
            transient = np.maximum(transient, tokens * layer.scan_workspace / tensor)
    kept = np.where(is_selective, kept_selectively, everything) if has_selective else everything
    mean_layer = kept / np.maximum(rows.layers, 1)
    head_bytes, cast_head_bytes = _head_bytes(job.head, Same(profile), job.attention, size)
    head = np.where(casts, on_rank(cast_head_bytes), on_rank(head_bytes)) if has_casts else on_rank(head_bytes)
    unneeded = _unneeded(rows, job, recomputed, on_rank)
    return Activity(
        stage=mean_layer * (rows.layers - recomputed) + checkpoint * recomputed - unneeded,
        layer=mean_layer,
        checkpoint=checkpoint,
        recomputed_layers=recomputed,
        kept_layers=rows.layers - recomputed,
        kept_twice=twice / np.maximum(rows.layers, 1),
        kept_again=again / np.maximum(rows.layers, 1),
        waiting=np.zeros(1),
        working_set=working_set,
        transient=transient if profile.kernels.backward_transients else np.zeros_like(transient),
        first_norm=first_norm,
        second_norm=second_norm,
        last_product=last_product,
        message=tokens * size * job.model.hidden_size / sequence_division,
        unused=unused,
        unneeded=unneeded,
        experts_product=experts_product,
        combine=combine,
        experts_reduced=experts_reduced,
        head=np.where(rows.has_head, head, 0.0),
        logits=np.where(rows.has_head, _logits(layouts, job, tokens, tensor), 0.0),
        gathered=np.where(
            sequence_division > 1, tokens * job.model.hidden_size * profile.kernels.gathered_workspace_bytes, 0.0
        ),
    )


def _unneeded(
    rows: StageRows, job: Job, recomputed: FloatArray, on_rank: Callable[[KeptBytes], FloatArray]
) -> FloatArray:
    """Return what the first layer does not keep where the embedding before it is frozen.

    A recomputed layer's input is made to need a gradient (peft, `enable_input_require_grads`).
    """
    kernels = job.profile.kernels
    if job.method == "full" or not kernels.backward_transients:
        return np.zeros(1)
    first = next(part for part in job.layers if 0 in part.block.layers)
    whole, needed = unneeded_bytes(
        first.block,
        kernels,
        attention=job.attention,
        element_bytes=job.precision.compute_bytes,
        learning=first.learning or frozenset(),
    )
    return np.where(rows.has_embedding & (recomputed == 0), on_rank(whole) - on_rank(needed), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerBytes:
    """What one kind of layer keeps for each token, and the widths of what lives in its backward pass.

    `whole` is everything, `cast` everything where autocast casts fp32 weights; `again` and `cast_again` are what of
    them several operations keep.
    """

    whole: KeptBytes
    cast: KeptBytes
    again: KeptAgain
    cast_again: KeptAgain
    selective: KeptBytes
    second_norm: KeptBytes
    experts_product: KeptBytes
    combine: KeptBytes
    experts_reduced: KeptBytes
    unused_bytes: tuple[int, int]
    selective_input_bytes: int
    scattered_bytes: int
    exchanged_bytes: int
    input_width: int
    first_norm_bytes: int
    widest: float
    meeting_gradients: int
    scan_workspace: float


def _layer_bytes(part: BlockWeights, job: Job) -> _LayerBytes:
    fp8_input_bytes = job.fp8.input_bytes if job.fp8 else 0
    return _kept_of_layer(
        part,
        Same(job.profile),
        job.method,
        job.attention,
        job.precision.compute_bytes,
        fp8_input_bytes,
        job.recompute_modules,
    )


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def _kept_of_layer(
    part: BlockWeights,
    same: Same[Profile],
    method: str,
    attention: str,
    size: int,
    fp8_input_bytes: int,
    modules: tuple[str, ...],
) -> _LayerBytes:
    profile = same.value
    kernels = profile.kernels
    whole = kept_bytes(
        part.block,
        kernels,
        attention=attention,
        element_bytes=size,
        learning=part.learning,
        frozen_input_bytes=kernels.four_bit_input_bytes if method == "qlora" else 0,
        fp8_input_bytes=fp8_input_bytes,
    )
    widest, meeting = meeting_gradients(part.block, part.learning, experts_in_turn=kernels.experts_in_turn)
    return _LayerBytes(
        whole=replace(whole, sequence_bytes=whole.sequence_bytes + adapter_activation_bytes(part, method, size)),
        cast=kept_bytes(part.block, kernels, attention=attention, element_bytes=size, autocast=True),
        again=kept_again(part.block, kernels, element_bytes=size, learning=part.learning),
        cast_again=kept_again(part.block, kernels, element_bytes=size, autocast=True),
        selective=selectively_kept_bytes(
            part.block,
            kernels,
            policy=profile.can.selective_policy,
            attention=attention,
            element_bytes=size,
            fp8_input_bytes=fp8_input_bytes,
            modules=modules,
        ),
        second_norm=kept_at_second_norm(
            part.block, kernels, attention=attention, element_bytes=size, learning=part.learning
        ),
        unused_bytes=unused_bytes(part.block, policy=profile.can.selective_policy, element_bytes=size),
        selective_input_bytes=selective_input_bytes(
            part.block, policy=profile.can.selective_policy, element_bytes=size
        ),
        experts_product=kept_at_experts_first_product(part.block, kernels, attention=attention, element_bytes=size),
        combine=kept_at_combine(part.block, whole, size),
        experts_reduced=kept_as_experts_are_reduced(part.block, whole, size),
        scattered_bytes=scattered_bytes(part.block, policy=profile.can.selective_policy, element_bytes=size),
        exchanged_bytes=exchanged_bytes(part.block, policy=profile.can.selective_policy, element_bytes=size),
        input_width=checkpoint_width(part.block),
        first_norm_bytes=norm_backward_bytes(part.block, kernels, size),
        widest=widest,
        meeting_gradients=meeting,
        scan_workspace=scan_workspace_bytes(part.block, size),
    )


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def _head_bytes(head: BlockWeights, same: Same[Profile], attention: str, size: int) -> tuple[KeptBytes, KeptBytes]:
    """Return what the head keeps for each token, and what where autocast casts fp32 weights."""
    kernels = same.value.kernels
    return (
        kept_bytes(head.block, kernels, attention=attention, element_bytes=size, learning=head.learning),
        kept_bytes(head.block, kernels, attention=attention, element_bytes=size, autocast=True),
    )


@once
def casts_weights(layouts: Candidates, job: Job) -> BoolArray:
    """Return where autocast makes 16-bit copies of fp32 weights as they are used."""
    stages = [int(stage) for stage, policy in job.profile.weights.policy.items() if policy == "autocast_copies"]
    is_wider = job.states.parameter != job.precision.compute_bytes
    return in_zero_stages(layouts.zero_stage, stages) & np.bool_(is_wider)


def _logits(layouts: Candidates, job: Job, tokens: FloatArray, tensor: FloatArray) -> FloatArray:
    """Return logits, their upcast and their gradient at the worst moment, or one chunk of a fused loss."""
    model, loss = job.model, job.profile.loss
    division = tensor if loss.vocabulary_parallel else 1.0
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    whole = np.where(
        (division > 1) if loss.vocabulary_parallel else False, loss.divided_logits_bytes, loss.logits_bytes
    )
    held = whole + np.where(accumulates, loss.kept_logits_bytes, 0)
    plain = tokens * model.vocabulary_size * held / division
    chunks = np.ceil(model.vocabulary_size / model.hidden_size)
    chunk_tokens = 2.0 ** np.ceil(np.log2(np.maximum(np.ceil(tokens / chunks), 1.0)))
    fused = np.minimum(chunk_tokens, tokens) * model.vocabulary_size * FUSED_CHUNK_BYTES
    gradients = job.precision.compute_bytes * model.hidden_size * (tokens + model.vocabulary_size)
    result: FloatArray = np.where(layouts.fused_cross_entropy, fused + gradients, plain)
    return result
