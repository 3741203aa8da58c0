"""A micro-batch's logits at the loss, in both passes, and their gradient."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import NONE, BoolArray, FloatArray, any_of
from plimsoll.planners.memory.activity import casts_weights
from plimsoll.planners.memory.preference_loss import PreferenceLoss, compares, preference_loss
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, some


def stage_logits(asked: Question) -> FloatArray:
    """Return how many logits of a micro-batch a rank has, where the head is."""
    layouts, job = asked.layouts, asked.job
    division = layouts.tensor_parallel if job.profile.loss.vocabulary_parallel else 1
    logits = layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    return np.where(asked.rows.has_head, logits, 0.0)


def is_compiled(asked: Question) -> BoolArray:
    """Return where the loss is one compiled kernel each way: not over ranks that divide the vocabulary.

    Source: torch 2.13, _functorch/partitioners.py, `min_cut_rematerialization_partition`, of a cross-entropy of logits
    that are cast to fp32: the logits, their maxima and the logarithms of their sums are saved, and the gradient is one
    pointwise kernel.
    """
    is_whole = asked.layouts.tensor_parallel == 1
    found: BoolArray = is_whole if asked.job.profile.loss.vocabulary_parallel else np.ones_like(is_whole)
    return found & np.bool_(asked.job.profile.loss.compiled)


def chunk_part(asked: Question) -> float:
    """Return which part of a sequence one chunk of the loss is, 1 where it has none.

    Source: torch.chunk, whose last chunk may be shorter than the others.
    """
    length, chunks = asked.job.sequence_length, asked.job.profile.loss.sequence_chunks
    return -(-length // chunks) / length if chunks else 1.0


def forward_logits(asked: Question) -> FloatArray:
    """Return what the loss holds of the logits at the forward pass's end.

    In chunks those are the logits of all, the log-softmax of all, and one chunk's cast; a fused loss holds all that it
    ever does, a compiled one the logits alone.
    """
    loss, size = asked.job.profile.loss, asked.job.precision.compute_bytes
    if compares(asked.job):
        return np.where(asked.rows.has_head, np.ceil(_of_pairs(asked).forward), 0.0)
    if loss.sequence_chunks:
        cast = FP32_BYTES * chunk_part(asked) if size < FP32_BYTES else 0.0
        in_chunks = np.ceil(stage_logits(asked) * (size + FP32_BYTES + cast))
        return np.where(is_compiled(asked), np.ceil(stage_logits(asked) * size), in_chunks)
    plain = np.ceil(asked.active.logits * (loss.forward_logits_bytes / loss.logits_bytes))
    plain = np.where(is_compiled(asked), np.ceil(stage_logits(asked) * size), plain)
    return np.where(asked.layouts.fused_cross_entropy, np.ceil(asked.active.logits) + _fused_product(asked), plain)


def unsaved_head_input(asked: Question) -> FloatArray:
    """Return the last norm's output, which the head does not save and a model holds until its loss is known.

    A frozen head saves none of it; where autocast casts all that is multiplied, its output is in fp32.
    Source: transformers 5.23, models/llama/modeling_llama.py, `LlamaForCausalLM.forward` (`hidden_states`).
    """
    job = asked.job
    if not (job.profile.loss.inside_model and job.profile.kernels.transformers_modules):
        return NO_BYTES
    casts = casts_weights(asked.layouts, job)
    if job.head.trainable and not any_of(casts):
        return NO_BYTES
    features = asked.layouts.local_tokens(job.sequence_length) * asked.rows.has_head * job.model.hidden_size
    if not job.head.trainable:
        return np.ceil(features * job.precision.compute_bytes)
    return some(np.where(casts, np.ceil(features * FP32_BYTES), 0.0))


def returned_logits(asked: Question) -> FloatArray:
    """Return what a whole replica holds of the logits as it returns them, with what the loss keeps in fp32.

    Under mixed precision those of 16 bits stand beside their copy in fp32 before that is cloned.
    """
    layouts, job = asked.layouts, asked.job
    if not job.profile.loss.replicas_return_logits or compares(job):
        return NO_BYTES
    size = job.precision.compute_bytes
    returned = FP32_BYTES if job.precision.is_mixed else size
    is_cloned = (layouts.data_parallel > 1) & (layouts.recompute == NONE)
    beside = np.where(is_cloned, returned, size if job.precision.is_mixed else 0)
    held = stage_logits(asked) * (FP32_BYTES + returned + beside)
    return np.where(layouts.fused_cross_entropy, 0.0, np.ceil(held))


def _of_pairs(asked: Question) -> PreferenceLoss:
    casts = casts_weights(asked.layouts, asked.job) & np.bool_(asked.job.method == "full")
    return preference_loss(asked.layouts, asked.job, casts)


def _fused_product(asked: Question) -> FloatArray:
    """Return the head's gradient of one chunk, which a fused loss adds where the sum lies in 16 bits alone.

    Source: Liger-Kernel 0.8.5, ops/fused_linear_cross_entropy.py, `fused_linear_cross_entropy_forward`.
    """
    is_fp32 = asked.job.precision.compute_bytes == FP32_BYTES
    return np.ceil(FP32_BYTES * asked.held.head_matrix_elements) if is_fp32 else NO_BYTES


def differentiated_logits(asked: Question) -> FloatArray:
    """Return what is live of the logits as the loss is differentiated; a fused loss has done so forwards.

    In chunks that is what was kept of all, and for one of them the loss's gradient and the log-softmax's; compiled, its
    logits' gradient alone.
    """
    active = asked.active
    if compares(asked.job):
        return np.ceil(active.logits)
    if asked.job.profile.loss.sequence_chunks:
        part, size = chunk_part(asked), asked.job.precision.compute_bytes
        in_chunks = np.ceil(stage_logits(asked) * FP32_BYTES * (1.0 + 2.0 * part))
        return np.where(is_compiled(asked), np.ceil(stage_logits(asked) * size * (1.0 + part)), in_chunks)
    return np.where(asked.layouts.fused_cross_entropy, np.ceil(active.kept_logits), np.ceil(active.logits))


def logits_gradient(asked: Question, head_gradient: FloatArray) -> FloatArray:
    """Return the logits' gradient in the compute precision; of a fused loss what it made, but for the head's own."""
    if compares(asked.job):
        return np.where(asked.rows.has_head, np.ceil(_of_pairs(asked).gradient), 0.0)
    plain = asked.job.precision.compute_bytes * stage_logits(asked)
    kept = np.ceil(asked.active.kept_logits)
    fused = np.maximum(kept - head_gradient, 0.0)
    return np.where(asked.layouts.fused_cross_entropy, fused, np.minimum(np.ceil(plain), kept))


def later_logits_gradient(asked: Question, gradient: FloatArray) -> FloatArray:
    """Return what of the logits' gradient is left behind a first chunk, with the hidden states' gradients of two."""
    part = chunk_part(asked)
    return np.ceil(gradient * (1.0 - part) + 2.0 * part * np.where(asked.rows.has_head, asked.active.p2p_message, 0.0))
