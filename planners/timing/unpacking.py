"""Seconds of unpacking 4-bit weights before they can be multiplied by.

bitsandbytes unpacks a frozen matrix into 16 bits in every forward pass and again
for the gradient of its input (`autograd/_functions.py`, `MatMul4Bit`): its codes
and scales are read and the matrix is written, at the memory's rate. A small
micro-batch feels it, a large one hardly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planners.architecture import Weight
from planners.hardware import Hardware
from planners.layout.candidates import Candidates, FloatArray
from planners.memory.frozen import frozen_weight_bytes, is_quantized
from planners.memory.job import Job
from planners.timing.efficiency import Efficiency


def unpacking_seconds(
    frozen: Sequence[Weight], layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> FloatArray:
    """Return one pass's unpacking of one layer's frozen matrices on a rank."""
    if job.method != "qlora":
        return np.zeros(len(layouts))
    packed = [weight for weight in frozen if is_quantized(weight)]
    size = job.precision.compute_bytes
    degrees, inverse = np.unique(layouts.tensor_parallel, return_inverse=True)
    moved = np.array(
        [
            float(
                sum(
                    frozen_weight_bytes(weight, degree, job) + size * weight.local_elements(degree) for weight in packed
                )
            )
            for degree in degrees.tolist()
        ]
    )
    rate = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
    result: FloatArray = moved[inverse] / rate
    return result
