"""Buffers of tensor parallelism that the host has let go of while the device still reads them.

The caching allocator gives a tensor that another stream has used back only once that
stream has got there (torch, c10/cuda/CUDACachingAllocator.cpp, `recordStream`), so that what
a layer hands to its collectives piles up for as long as the host runs ahead. A pipeline's
host waits for the device whenever it receives: one micro-batch of the stage's warm-up, in which it
only sends, and the one at hand are as they should be, and those in between pile up. Without a
pipeline nothing is received, and the one micro-batch piles up. They are reserved and not allocated: an allocator that
runs short waits for the device and takes them all back, so that they never keep a run from fitting.

Source: runs of the Ultra-Scale Playbook's sweep, in which what is held beyond the kept activations is, of each layer,
that of no micro-batch in pipelines of two stages, of 2 in those of four and of 6 in those of eight (docs/accuracy.md).
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.layouts.stages import StageRows

# The micro-batches of a pipeline's stage in flight that hold no more than they keep: the first and the last.
ORDERLY_MICRO_BATCHES = 2


def run_ahead_bytes(layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return what every stage's buffers hold, where tensor parallelism gathers along the sequence."""
    ahead = job.profile.run_ahead
    if ahead is None:
        return np.zeros(1)
    tensor = layouts.tensor_parallel
    piles = layouts.sequence_parallel & (tensor < ahead.below_tensor_ranks) & (layouts.gpus < ahead.below_gpus)
    in_pipeline = np.maximum(rows.in_flight - ORDERLY_MICRO_BATCHES, 0.0)
    micro_batches = np.where(layouts.pipeline_parallel > 1, in_pipeline, 1.0)
    # A rank's own part of what is gathered is kept anyway.
    gathered = layouts.local_tokens(job.sequence_length) * job.model.hidden_size * (1.0 - 1.0 / tensor)
    held: FloatArray = np.where(piles, micro_batches * rows.layers * gathered * ahead.layer_bytes, 0.0)
    return held
