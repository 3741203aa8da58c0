"""The memory of an evaluation between two steps.

The forward pass keeps nothing for a backward one. Hugging Face's Trainer, when
metrics are computed of the predictions, gathers every rank's logits after each
batch, upcast to fp32 by accelerate, and keeps them on the device until
`eval_accumulation_steps` batches are done, or all (transformers, `trainer.py`,
`evaluation_loop`; accelerate, `convert_outputs_to_fp32`).
"""

from __future__ import annotations

import numpy as np

from planners.layout.candidates import Candidates, FloatArray
from planners.memory.activity import Activity, casts_weights
from planners.memory.holdings import Holdings, has_weight_policy
from planners.memory.items import EVALUATION, NOTHING, PHASES, Items
from planners.memory.job import Job
from planners.memory.stages import StageRows

FP32_BYTES = 4


def evaluation_items(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> Items:
    """Return what an evaluation holds.

    Parameters, optimizer and the gathered or cast weights stand beside one layer's
    activations, the loss of one batch and the logits kept.
    """
    asked = job.evaluation
    if asked is None:
        raise ValueError("The job asks for no evaluation.")
    share = asked.batch_size / layouts.micro_batch_size
    logits = share * active.logits
    if asked.keeps_logits:
        batches = asked.accumulation_steps or -(-asked.samples // (asked.batch_size * layouts.data_parallel))
        gathered = asked.batch_size * layouts.data_parallel * job.sequence_length
        kept = batches * gathered * job.model.vocabulary_size * FP32_BYTES
        logits = logits + np.where(rows.has_head, kept, 0.0)
    return Items(
        phase=PHASES.index(EVALUATION),
        parameters=np.ceil(held.parameters),
        gradients=NOTHING,
        optimizer=np.ceil(held.optimizer),
        activations=np.ceil(share * (active.working_set + active.head) + held.dequantized),
        logits=np.ceil(logits),
        communication=np.ceil(_weights(layouts, rows, job, held)),
    )


def _weights(layouts: Candidates, rows: StageRows, job: Job, held: Holdings) -> FloatArray:
    """Return the weights in the compute precision: two layers and the root gathered, or all of them.

    autocast's cache holds a copy of every fp32 weight until the forward pass is over.
    """
    size, stage = job.precision.compute_bytes, layouts.zero_stage
    by_layer = has_weight_policy(stage, job, "gathered_by_layer")
    once = has_weight_policy(stage, job, "gathered_once")
    weights = NOTHING
    if (by_layer | once).any():
        root = size * held.root_elements + held.root_frozen
        layer = size * held.layer_elements + held.layer_frozen
        layers = np.where(by_layer, np.minimum(rows.layers, 2), rows.layers)
        weights = np.where(by_layer | once, root + layer * layers, 0.0)
    copied = casts_weights(layouts, job)
    return np.where(copied, size * held.stage_elements, weights) if copied.any() else weights
