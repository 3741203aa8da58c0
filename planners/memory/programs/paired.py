"""What a stage holds whose forward passes run beside backward passes of other micro-batches, to hide experts' traffic.

Megatron-Core goes through a layer of each at a time: attention with routing, dispatch, experts and combine are nodes
of their own, whose inputs and outputs autograd knows nothing of, so that each output's gradient is held until its node
has been differentiated.

Source: NVIDIA/Megatron-LM core_v0.16.1, core/models/common/model_chunk_schedule_plan.py
(`TransformerLayerSchedulePlan.run`), models/gpt/fine_grained_callables.py, pipeline_parallel/utils.py (`ScheduleNode`),
transformer/moe/token_dispatcher.py (`MoEAlltoAllTokenDispatcher`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import FloatArray, any_of
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.layouts.stages import paired_in_chunks
from plimsoll.planners.memory.activity import LayerActivity
from plimsoll.planners.memory.programs.at_rest import waiting_micro_batch
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Mask, mask_of

# A layer's input and its gradient, which the graph of the scores that a dispatcher remembers (`probs`) holds on to.
REMEMBERED_TENSORS = 2
# Behind the layer whose attention waits to be differentiated: its output's gradient, and as much as the residual's.
GRADIENTS_BEHIND_ATTENTION = 2
# The experts' outputs, and the same in the order in which the tokens came.
OUTPUTS_OF_EXPERTS = 2

# The gradient received, the residual of the highest layer, and its gradient.
RECEIVED_AND_RESIDUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Bytes of the micro-batches that wait, and of what stands there with them.

    `others` wait while one is at work, `at_embedding` as the embedding's gradient is made, `at_head` as the loss is
    known. `pairs` are the layouts in which a forward pass ever runs beside a backward pass.
    """

    pairs: Mask
    others: FloatArray
    at_embedding: FloatArray
    at_head: FloatArray


def waiting_bytes(asked: Question, others: FloatArray, at_embedding: FloatArray, at_head: FloatArray) -> Waiting:
    """Return what waits, given the micro-batches' worth that waits of a schedule without pairs."""
    layouts, rows, active = asked.layouts, asked.rows, asked.active
    each = waiting_micro_batch(asked)
    alone = Waiting(pairs=False, others=others * each, at_embedding=at_embedding * each, at_head=at_head * each)
    if not any_of(layouts.expert_overlap):
        return alone
    paired = paired_in_chunks(layouts, rows.pipelines, asked.job)
    layer, message = each / np.maximum(rows.layers, 1), active.p2p_message
    remembered = REMEMBERED_TENSORS * message
    # The head's forward pass has been before the embedding is differentiated, where a stage has both.
    after_head = np.where(rows.has_head, active.head + active.kept_logits, 0.0)
    # Until the loss is known the backward pass's last gradient stands there, and the embedding's output.
    before_embedding = message * (1.0 + rows.has_embedding)
    exists = layouts.expert_overlap & (paired.waiting > 0)
    of_others = paired.waiting * layer - each + remembered * paired.remembered
    by_output = held_by_outputs(asked)
    of_embedding = paired.at_embedding * layer + remembered * paired.remembered_at_embedding + message + after_head
    of_head = paired.at_head * layer - each + remembered * paired.remembered_at_head + before_embedding
    # From the second round on the pass beside the head's is one through the lowest chunk, which has sent its output.
    goes_round = layouts.micro_batches(asked.job.global_batch_size) > layouts.pipeline_parallel
    of_embedding, of_head = of_embedding + by_output, of_head + np.where(goes_round, by_output, 0.0)
    return Waiting(
        pairs=mask_of(exists),
        others=np.where(exists, np.maximum(of_others, 0.0), alone.others),
        at_embedding=np.where(exists, of_embedding, alone.at_embedding),
        at_head=np.where(exists & rows.has_head, np.maximum(of_head, 0.0), alone.at_head),
    )


def held_by_outputs(asked: Question) -> FloatArray:
    """Return what a pipeline's stage holds beside a pair: the gradient that it received, and its output's graph.

    That graph is of the highest layer's combine, whose inputs are leaves: the experts' outputs, given back, and the
    residual, each with its gradient (combined_1f1b.py, `combined_forward_backward_step`, `b_output_tensor`).
    """
    layouts, message = asked.layouts, asked.active.p2p_message
    if not any_of(layouts.expert_overlap):
        return NO_BYTES
    sent = functools.reduce(np.maximum, (layer.sent for layer in asked.active.layers))
    has_pairs = layouts.expert_overlap & (layouts.pipeline_parallel > 1)
    # Of chunks of one layer that layer is at work: its residual is counted there, and gradients of no layer above it.
    messages = np.where(asked.rows.layers > layouts.virtual_pipeline, RECEIVED_AND_RESIDUAL, -1)
    return np.where(has_pairs, messages * message + sent, 0.0)


def paired_bytes(asked: Question, own: LayerActivity, differentiated: FloatArray) -> FloatArray:
    """Return what is live of a layer as another micro-batch goes forward through one like it, of both in all.

    The worse of two moments: as the experts are differentiated, of which all is live that is `differentiated`, and the
    other pass's tokens are about to be sent; and as that pass has been through its experts, and of the first one the
    attention is left.
    """
    layouts = asked.layouts
    if not any_of(layouts.expert_overlap):
        return NO_BYTES
    attention = own.kept - own.in_experts
    at_experts = differentiated + own.received + asked.active.p2p_message + attention + own.sent
    has_parts = (expert_tensor_ranks(layouts, asked.job) > 1) & (layouts.tensor_parallel > 1)
    scattered = np.where(has_parts, own.sent, 0.0)
    behind = attention + GRADIENTS_BEHIND_ATTENTION * asked.active.p2p_message + own.sent
    ahead = own.kept + own.sent + OUTPUTS_OF_EXPERTS * own.received + scattered
    return np.where(layouts.expert_overlap, np.maximum(at_experts, behind + ahead), 0.0)
