"""Seconds of unpacking 4-bit weights before they can be multiplied by.

bitsandbytes unpacks a frozen matrix into 16 bits in every forward pass and again
for the gradient of its input (`autograd/_functions.py`, `MatMul4Bit`): its codes
and scales are read and the matrix is written, at the memory's rate. A small
micro-batch feels it, a large one hardly.
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.memory.frozen import base_width, unpacked_bytes
from plimsoll.planners.memory.shards import WHOLE, divisions
from plimsoll.planners.timing.efficiency import Efficiency


def unpacking_seconds(
    part: BlockWeights, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> FloatArray:
    """Return one pass's unpacking of one layer's frozen matrices on a rank."""
    if job.method != "qlora":
        return np.zeros(1)
    by = divisions(layouts, np.array([WHOLE]), job)
    rate = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
    result: FloatArray = by.spread(unpacked_bytes, part, base_width(job)) / rate
    return result
