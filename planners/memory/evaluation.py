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
from planners.memory.activity import Activity
from planners.memory.holdings import Holdings
from planners.memory.job import Job
from planners.memory.stages import StageRows

EVALUATION = "evaluation"
FP32_BYTES = 4


def evaluation_items(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> FloatArray:
    """Return bytes as an array [item, row], in the order of the phases' items.

    Parameters, optimizer and the gathered or cast weights stand beside one layer's
    activations, the loss of one batch and the logits kept.
    """
    asked = job.evaluation
    if asked is None:
        raise ValueError("The job asks for no evaluation.")
    share = asked.batch_size / layouts.micro_batch_size[rows.owner]
    kept = np.zeros_like(held.parameters)
    if asked.keeps_logits:
        batches = asked.accumulation_steps or -(-asked.samples // (asked.batch_size * layouts.data_parallel))
        gathered = asked.batch_size * layouts.data_parallel * job.sequence_length
        logits = batches * gathered * job.model.vocabulary_size * FP32_BYTES
        kept = np.where(rows.has_head, np.broadcast_to(logits, len(layouts))[rows.owner], 0.0).astype(np.float64)
    zero = np.zeros_like(held.parameters)
    return np.ceil(
        np.stack(
            [
                held.parameters,
                zero,
                held.optimizer,
                share * (active.working_set + active.head) + held.dequantized,
                share * active.logits + kept,
                _weights(layouts, rows, job, held),
            ]
        )
    )


def _weights(layouts: Candidates, rows: StageRows, job: Job, held: Holdings) -> FloatArray:
    """Return the weights in the compute precision: two layers and the root gathered, or all of them.

    autocast's cache holds a copy of every fp32 weight until the forward pass is over.
    """
    size = job.precision.compute_bytes
    root = size * held.root_elements + held.root_frozen
    layer = size * held.layer_elements + held.layer_frozen
    policy = np.array([job.profile.weights.policy.get(str(stage), "resident") for stage in range(4)])
    of_row = policy[layouts.zero_stage[rows.owner]]
    whole = root + layer * rows.layers
    copies = size * held.stage_elements if job.states.parameter != size else np.zeros_like(root)
    cases = [of_row == "gathered_by_layer", of_row == "gathered_once", of_row == "autocast_copies"]
    result: FloatArray = np.select(cases, [root + layer * np.minimum(rows.layers, 2), whole, copies], 0.0)
    return result
