"""What a rank holds of layers for multi-token prediction beside what their own kind of layer takes.

Source: Megatron-Core, models/gpt/gpt_model.py (`_postprocess`), transformer/multi_token_prediction.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, FloatArray
from plimsoll.planners.memory.programs.logits import stage_logits
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.rank_share import rank_share
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, some

# Tensors as wide as the stream that stand around one layer: the embedding, it and the stream side by side (two), the
# last norm's input, its output for the layer above or for the loss, and all outputs one behind the other, once more.
KEPT_TENSORS = 6
# Of a layer that is recomputed in full, whose own input stands for the embedding, the last two.
KEPT_TENSORS_RECOMPUTED = 2
NORMS = 3
# Of three and more gradients the sum of the first is there as the next is added to it.
MOST_SUMS = 2
# Gradients of the stream, and of the embedding that is joined to it.
GRADIENTS_AT_TABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MultiToken:
    """Whole bytes on one rank of a stage, nothing where no token behind the next one is predicted.

    `logits` are what the losses of all further tokens keep; `named_logits` those of the last of them before its loss,
    which a variable of the forward pass still names as the next token's loss is worked out. `head_sum` is what autograd
    makes to add up the head's empty gradients, of each use one, and `tied_sum` their sum for a table that is the head's
    matrix too, which waits for its other gradients. `table_gradient` is that of one more use of the table; what is
    `table_kept` waits for the embedding's own. `at_table` stands beside it.
    """

    logits: FloatArray
    named_logits: FloatArray
    head_sum: FloatArray
    tied_sum: FloatArray
    table_gradient: FloatArray
    table_kept: FloatArray
    at_table: FloatArray


NO_MULTI_TOKEN = MultiToken(
    logits=NO_BYTES,
    named_logits=NO_BYTES,
    head_sum=NO_BYTES,
    tied_sum=NO_BYTES,
    table_gradient=NO_BYTES,
    table_kept=NO_BYTES,
    at_table=NO_BYTES,
)


def multi_token(asked: Question) -> MultiToken:
    """Return what is held beside the layers themselves."""
    job, rows, held = asked.job, asked.rows, asked.held
    layers, size = job.model.multi_token_layers, job.precision.compute_bytes
    if not layers:
        return NO_MULTI_TOKEN
    head = np.ceil(size * held.head_matrix_elements)
    table = np.ceil(size * held.table_elements)
    waits = rows.has_embedding | np.bool_(job.model.tied_head)
    return MultiToken(
        logits=np.ceil(layers * asked.active.kept_logits),
        named_logits=some(np.ceil(size * stage_logits(asked))) if size < FP32_BYTES else NO_BYTES,
        head_sum=min(layers, MOST_SUMS) * head,
        tied_sum=head if job.model.tied_head else NO_BYTES,
        table_gradient=table,
        table_kept=some(np.where(waits & rows.has_multi_token, table, 0.0)),
        at_table=some(np.where(rows.has_multi_token, GRADIENTS_AT_TABLE * np.ceil(asked.active.p2p_message), 0.0)),
    )


def joint_bytes(asked: Question) -> FloatArray:
    """Return what is kept of what joins one further layer to the model.

    Where ranks split the sequence, the layer's input is a view of the whole one.
    """
    layouts, job = asked.layouts, asked.job
    recomputed = (layouts.recompute == FULL) & (layouts.full_layers == ALL_LAYERS)
    tensors, norms = (
        np.where(recomputed, apart, kept) for apart, kept in ((KEPT_TENSORS_RECOMPUTED, KEPT_TENSORS), (0, NORMS))
    )
    stream = job.precision.compute_bytes * job.model.hidden_size
    statistics = norms * job.profile.kernels.norm_statistic_bytes
    share = rank_share(layouts, job)
    others = np.where(recomputed, 0.0, share.tokens * stream * (1.0 - 1.0 / share.sequence_division))
    return np.ceil(share.of_sequence(tensors * stream + statistics) + others)
