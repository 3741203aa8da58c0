"""Seconds of the forward passes of models that stand beside the one that learns."""

from __future__ import annotations

import numpy as np

from planners.hardware import Hardware
from planners.layout.candidates import Candidates, FloatArray
from planners.memory.job import Job
from planners.timing.efficiency import Efficiency
from planners.timing.pace import micro_batch_pace
from planners.timing.traffic import rank_groups


def companion_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return a step's forward passes of all companions: one for each micro-batch, one companion after another.

    The gathering of their sharded weights is taken to hide behind the layer before, as FSDP fetches ahead.
    """
    if not job.companions:
        return np.zeros(1)
    seconds = np.zeros(1)
    for companion in job.companions:
        groups = rank_groups(layouts, companion.job, hardware, efficiency)
        seconds = seconds + micro_batch_pace(layouts, companion.job, hardware, efficiency, groups).forward
    result: FloatArray = layouts.micro_batches(job.global_batch_size) * seconds
    return result
