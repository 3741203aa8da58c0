"""A micro-batch's logits at the loss, in both passes, and their gradient."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.programs.question import Question


def stage_logits(asked: Question) -> FloatArray:
    """Return how many logits of a micro-batch a rank has, where the head is."""
    layouts, job = asked.layouts, asked.job
    division = layouts.tensor_parallel if job.profile.loss.vocabulary_parallel else 1
    logits = layouts.local_tokens(job.sequence_length) * job.model.vocabulary_size / division
    return np.where(asked.rows.has_head, logits, 0.0)


def forward_logits(asked: Question) -> FloatArray:
    """Return what the loss holds of the logits at the forward pass's end."""
    loss = asked.job.profile.loss
    return np.ceil(asked.active.logits * (loss.forward_logits_bytes / loss.logits_bytes))


def differentiated_logits(asked: Question) -> FloatArray:
    """Return what is live of the logits as the loss is differentiated; a fused loss has done so forwards."""
    active = asked.active
    return np.where(asked.layouts.fused_cross_entropy, np.ceil(active.kept_logits), np.ceil(active.logits))


def logits_gradient(asked: Question, head_gradient: FloatArray) -> FloatArray:
    """Return the logits' gradient in the compute precision; of a fused loss what it made, but for the head's own."""
    plain = asked.job.precision.compute_bytes * stage_logits(asked)
    kept = np.ceil(asked.active.kept_logits)
    fused = np.maximum(kept - head_gradient, 0.0)
    return np.where(asked.layouts.fused_cross_entropy, fused, np.minimum(np.ceil(plain), kept))
