"""Compressed gradients: what data-parallel ranks send instead of them, and what they remember of the rest.

`bf16` and `fp16` cast what is sent (PyTorch, ddp_comm_hooks/default_hooks.py).
`powersgd` sends two narrow factors of every matrix that they make at least twice
as small and remembers the error in a buffer as large as the gradients (Vogels et
al. 2019, arXiv:1905.13727; ddp_comm_hooks/powerSGD_hook.py). `1-bit` sends the
signs of the momentum once the variance is frozen and remembers two errors, one of
all elements and one of a rank's part (Tang et al. 2021, arXiv:2102.02888;
DeepSpeed, runtime/fp16/onebit/adam.py).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from plimsoll.planners.ground.terms import ONE_BIT, POWERSGD
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray

POWERSGD_RANK = 1  # PowerSGDState's matrix_approximation_rank
POWERSGD_LEAST_GAIN = 2  # its min_compression_rate
CAST_BYTES = 2
SIGN_BYTES = 1 / 8
ONE_BIT_ERROR_BYTES = 4  # worker_error and server_error are fp32


def sent_fraction(job: Job) -> float:
    """Return the bytes sent over those of the whole gradients."""
    gradient_bytes = job.reduce_bytes
    match job.gradient_compression:
        case "bf16" | "fp16":
            return min(CAST_BYTES / gradient_bytes, 1.0)
        case "powersgd":
            return _narrow_fraction(job)
        case "1-bit":
            return SIGN_BYTES / gradient_bytes
        case _:
            return 1.0


def saved_routing_bytes(layouts: Candidates, job: Job, stage_elements: FloatArray) -> FloatArray:
    """Return the errors of a rank that learns `stage_elements`; nothing where one rank has nobody to send to."""
    has_others = layouts.data_parallel > 1
    if job.gradient_compression == POWERSGD:
        return np.where(has_others, job.states.gradient * stage_elements, 0.0)
    if job.gradient_compression == ONE_BIT:
        return np.where(has_others, ONE_BIT_ERROR_BYTES * stage_elements * (1.0 + 1.0 / layouts.data_parallel), 0.0)
    return np.zeros(1)


@functools.lru_cache(maxsize=64)
def _narrow_fraction(job: Job) -> float:
    """Return the elements of both factors, and of what is sent whole, over all elements."""
    sent = every = 0
    for part in job.parts:
        for weight in part.trainable:
            rows = weight.shape[0]
            columns = math.prod(weight.shape) // rows
            narrow = POWERSGD_RANK * (rows + columns)
            is_worth_it = len(weight.shape) > 1 and narrow * POWERSGD_LEAST_GAIN < rows * columns
            copies = weight.elements // (rows * columns) * part.block.repeats
            sent += copies * (narrow if is_worth_it else rows * columns)
            every += copies * rows * columns
    return sent / every
