"""The loss of preference pairs as TRL makes it: log-probabilities of tiles of logits, which no one keeps.

The head multiplies a tile of tokens by a tile of the vocabulary; a kernel adds each tile to running sums. The backward
pass makes every tile again and adds the gradients of hidden states and head up in fp32, before it casts them.

Source: TRL 1.16, kernels/chunked_logprob.py, `ChunkedLogProbFunction`; trainer/utils.py, `add_fused_lm_head`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Split
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.terms import REFERENCE
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray

# TOKEN_CHUNK_SIZE there, and _CHUNKED_LOGPROB_CHUNK_SIZE; a tile is as wide for smaller vocabularies.
TILE_TOKENS, TILE_ENTRIES = 4096, 32768
# Of a token scored: seven running sums in fp32, its target, and its label and mask before tokens were chosen.
SUMS_BYTES = 7 * FP32_BYTES + 8 + 8 + 1
# Until the backward pass: the target, the logarithm of the sum and the entropy, and what the metrics read.
KEPT_BYTES = 8 + 6 * FP32_BYTES + 8 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLoss:
    """Bytes of a micro-batch's loss on one rank beside what the head keeps.

    `forward` as it is made, `kept` for the backward pass, `backward` as it is differentiated, and `gradient`, of the
    hidden states, once the head's is there.
    """

    forward: FloatArray
    kept: FloatArray
    backward: FloatArray
    gradient: FloatArray


def compares(job: Job) -> bool:
    """Return whether the loss compares the model with a reference beside it."""
    return any(companion.role == REFERENCE for companion in job.companions)


def preference_loss(layouts: Candidates, job: Job, casts: BoolArray) -> PreferenceLoss:
    """Return what the policy's loss holds; `casts` says where autocast reads fp32 weights and hidden states."""
    size, hidden, vocabulary = job.precision.compute_bytes, job.model.hidden_size, job.model.vocabulary_size
    scored, stream_bytes = scored_tokens(layouts, job), np.where(casts, FP32_BYTES, size)
    stream = stream_bytes * scored * hidden
    head = float(vocabulary * hidden) if learns_head(job) else 0.0
    tile = tile_bytes(layouts, job, size)
    head_cast = np.where(casts, size * hidden * min(vocabulary, TILE_ENTRIES), 0.0)
    stream_cast = np.where(casts, size * hidden * np.minimum(scored, TILE_TOKENS), 0.0)
    are_narrow = stream_bytes < FP32_BYTES
    cast_gradients = np.where(are_narrow, size * (scored * hidden + head), 0.0)
    # Beside a frozen head hidden states are kept too, which a plain product would not.
    kept = KEPT_BYTES * scored + (0.0 if head else stream)
    again = np.where(vocabulary > TILE_ENTRIES, 2.0, 1.0)  # the next is cast before the last one goes
    return PreferenceLoss(
        forward=kept + stream + SUMS_BYTES * scored + tile + head_cast + stream_cast,
        kept=kept,
        backward=kept + FP32_BYTES * (scored * hidden + head) + tile + again * head_cast + stream_cast + cast_gradients,
        gradient=2.0 * stream,
    )


def reference_loss(layouts: Candidates, job: Job, weight_bytes: int, casts: BoolArray) -> FloatArray:
    """Return what the log-probabilities of a reference of that width hold at most, with its last hidden states."""
    size, hidden, scored = job.precision.compute_bytes, job.model.hidden_size, scored_tokens(layouts, job)
    tile = tile_bytes(layouts, job, size)
    head_cast = np.where(casts, size * hidden * min(job.model.vocabulary_size, TILE_ENTRIES), 0.0)
    stream_bytes = np.where(casts, weight_bytes, size)
    result: FloatArray = 2.0 * stream_bytes * hidden * scored + SUMS_BYTES * scored + tile + head_cast
    return result


def tile_bytes(layouts: Candidates, job: Job, size: int) -> FloatArray:
    """Return the tile that logits are made in."""
    result: FloatArray = size * TILE_ENTRIES * np.minimum(scored_tokens(layouts, job), TILE_TOKENS)
    return result


def scored_tokens(layouts: Candidates, job: Job) -> FloatArray:
    """Return the tokens of a micro-batch that are predicted: all of a sequence but its first."""
    tokens = layouts.local_tokens(job.sequence_length)
    return np.maximum(tokens - layouts.micro_batch_size, 0.0)


def learns_head(job: Job) -> bool:
    """Return whether the head's matrix learns, which may be the embedding's."""
    return job.method == "full" or any(weight.split is Split.VOCABULARY for weight in job.head.trainable)
