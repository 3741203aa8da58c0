"""Activations on the host: what the layers keep leaves the device as it is made and comes back when it is needed.

torch's `save_on_cpu` (torch/autograd/graph.py) copies every tensor that autograd
keeps and lets go of the device's copy; TRL and torchtune do the same on a second
stream, but for parameters and the head's output
(`trl/models/activation_offloading.py`, `OffloadActivations`: five tensors wait
for their copies at most, `max_fwd_stash_size`). What is in flight is thus at most
one layer's: the one that is at work.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planners.layout.candidates import Candidates, FloatArray
from planners.memory.activity import Activity, activity
from planners.memory.job import Job
from planners.memory.stages import StageRows, deciding_stages


def left_on_device(active: Activity, layouts: Candidates) -> Activity:
    """Return the activations of which one layer's at most are on the device where they are offloaded.

    Backwards the layer at work has come back whole (`working_set`), and no other has.
    """
    moves = layouts.activation_offload
    if not moves.any():
        return active
    in_flight = np.minimum(np.maximum(active.layer, active.checkpoint), active.stage)
    return replace(
        active,
        stage=np.where(moves, in_flight, active.stage),
        layer=np.where(moves, 0.0, active.layer),
        checkpoint=np.where(moves, 0.0, active.checkpoint),
        unneeded=np.where(moves, 0.0, active.unneeded),
    )


def offloaded_bytes(active: Activity, layouts: Candidates, rows: StageRows) -> FloatArray:
    """Return what every stage keeps on the host: all layers' activations of the micro-batches in flight."""
    return np.where(layouts.activation_offload, active.stage * rows.in_flight, 0.0)


def micro_batch_offload_bytes(layouts: Candidates, job: Job) -> FloatArray:
    """Return what one micro-batch sends to the host on each layout's fullest stage; it comes back once."""
    if not layouts.activation_offload.any():
        return np.zeros(1)
    rows = deciding_stages(layouts, job.model, job.global_batch_size, rule=job.profile.can.stage_rule)
    fullest: FloatArray = activity(layouts, rows, job).stage.max(axis=0)
    return np.where(layouts.activation_offload, fullest, 0.0)
