"""The memory of an evaluation between two steps.

The forward pass keeps nothing for a backward one. Hugging Face's Trainer, when
metrics are computed of the predictions, gathers every rank's logits after each
batch, upcast to fp32 by accelerate, and keeps them on the device until
`eval_accumulation_steps` batches are done, or all (transformers, `trainer.py`,
`evaluation_loop`; accelerate, `convert_outputs_to_fp32`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import FloatArray
from plimsoll.planners.memory.items import EVALUATION, NOTHING, PHASES, Items
from plimsoll.planners.memory.step_context import StepContext
from plimsoll.planners.questions import Evaluation


def evaluation_items(step: StepContext, asked: Evaluation) -> Iterator[Items]:
    """Yield what an evaluation holds in its last layer, and at the head.

    Parameters, optimizer and the gathered or cast weights stand beside one layer's
    activations, then beside the loss of a batch; the logits kept so far beside both.
    """
    layouts, job, held, active = step.layouts, step.job, step.held, step.active
    share = asked.batch_size / layouts.micro_batch_size
    kept = NOTHING
    if asked.keeps_logits:
        batches = asked.accumulation_steps or -(-asked.samples // (asked.batch_size * layouts.data_parallel))
        gathered = asked.batch_size * layouts.data_parallel * job.sequence_length
        kept = np.where(step.rows.has_head, batches * gathered * job.model.vocabulary_size * FP32_BYTES, 0.0)
    in_layer = share * active.backward.working_set + held.dequantized
    for event, activations, logits, weights in (
        ("layer", in_layer, kept, _gathered_in_layer(step)),
        ("loss", share * active.head, kept + share * active.logits, _gathered_at_head(step)),
    ):
        yield Items(
            phase=PHASES.index(EVALUATION),
            event=event,
            parameters=np.ceil(held.parameters),
            gradients=NOTHING,
            optimizer=np.ceil(held.optimizer),
            activations=np.ceil(activations),
            logits=np.ceil(logits),
            communication=np.ceil(_with_copies(step, weights)),
        )


def _gathered_in_layer(step: StepContext) -> FloatArray:
    """Return two layers, and the root unless the vocabulary has units of its own, or all layers."""
    if not step.any_gathered:
        return NOTHING
    root = NOTHING if step.own_units else step.root
    layers: FloatArray = np.where(step.gathered_by_layer, np.minimum(step.rows.layers, 2), 0)
    by_layer = np.where(step.gathered_by_layer, root + step.one_layer * layers, 0.0)
    return by_layer + np.where(step.gathered_once, step.open_root + step.whole_layers, 0.0)


def _gathered_at_head(step: StepContext) -> FloatArray:
    """Return the head's unit, or the root and the last layer's buffer, or all layers and the root."""
    if not step.any_gathered:
        return NOTHING
    if step.own_units:
        beside: FloatArray = step.job.precision.compute_bytes * step.held.head_elements
    else:
        beside = step.root + step.layer_buffer
    by_layer = np.where(step.gathered_by_layer, beside, 0.0)
    return by_layer + np.where(step.gathered_once, step.root + step.whole_layers, 0.0)


def _with_copies(step: StepContext, gathered: FloatArray) -> FloatArray:
    """Return the gathered weights, or the copies of all that autocast's cache holds until the forward pass is over."""
    if not step.any_copies:
        return gathered
    copies = step.job.precision.compute_bytes * step.held.stage_elements
    result: FloatArray = np.where(step.autocast_copies, copies, gathered)
    return result
