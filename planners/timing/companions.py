"""Seconds of models that stand beside the one that learns."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import CompanionJob, Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.pace import Pace, micro_batch_pace
from plimsoll.planners.timing.traffic import Groups


def companion_forward_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return a step's forward passes of all companions: one for each micro-batch, one companion after another.

    The gathering of their sharded weights is taken to hide behind the layer before, as FSDP fetches ahead.
    """
    seconds = np.zeros(1)
    for companion in job.companions:
        seconds = seconds + _pace(companion, layouts, hardware, efficiency).forward
    result: FloatArray = layouts.micro_batches(job.global_batch_size) * seconds
    return result


def companion_backward_seconds(layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> FloatArray:
    """Return a step's backward passes of the companions that learn, with what they compute again."""
    seconds = np.zeros(1)
    for companion in job.companions:
        if companion.trainable:
            pace = _pace(companion, layouts, hardware, efficiency)
            seconds = seconds + pace.backward + pace.recompute
    result: FloatArray = layouts.micro_batches(job.global_batch_size) * seconds
    return result


def _pace(companion: CompanionJob, layouts: Candidates, hardware: Hardware, efficiency: Efficiency) -> Pace:
    groups = Groups(layouts, companion.job, hardware, efficiency)
    return micro_batch_pace(layouts, companion.job, hardware, efficiency, groups)
