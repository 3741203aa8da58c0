"""States on NVMe: what DeepSpeed's ZeRO-Infinity leaves in host memory, and what lies on the drives.

Optimizer states lie on the drives whole; the host has a pool of pinned buffers of
one sub-group each, in fp32 (`swap_tensor/optimizer_utils.py`: `SwapBufferManager`
of `largest_numel` elements). Of the parameters the host keeps the first
`max_in_cpu` elements and a pool of pinned buffers (`partitioned_param_swapper.py`), and of the gradients those in the
model's own format (`stage3.py`, `grad_partitions_flat_buffer`); their fp32 copies lie on the drives. Before
0.6 there was no such buffer with a single micro-batch, whose gradients went straight to the drives.
Asynchronous I/O works in these buffers and brings none of its own.
Sources: DeepSpeed, `runtime/zero/offload_config.py` and `runtime/zero/config.py`
for the defaults; Rajbhandari et al. 2021, arXiv:2104.07857.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import Candidates, FloatArray
from plimsoll.planners.memory.holdings import Holdings

OPTIMIZER_BUFFERS = 4  # offload_optimizer.buffer_count: parameter, gradient, momentum and variance
OPTIMIZER_BUFFER_BYTES = 4  # an fp32 element
SUB_GROUP_ELEMENTS = 1_000_000_000  # sub_group_size
PARAMETER_BUFFERS = 5  # offload_param.buffer_count
PARAMETER_BUFFER_ELEMENTS = 100_000_000  # offload_param.buffer_size
PARAMETERS_IN_HOST = 1_000_000_000  # offload_param.max_in_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Bytes of one rank's offloaded states in host memory and on NVMe, for every stage."""

    host: FloatArray
    nvme: FloatArray


def placed(held: Holdings, layouts: Candidates, job: Job) -> Placed:
    """Return where the states lie that the device does not hold."""
    if job.offload_target != "nvme":
        return Placed(host=held.host, nvme=np.zeros(1))
    to_host = layouts.offload
    elements = held.local_parameters
    sub_group = np.minimum(elements, SUB_GROUP_ELEMENTS)
    buffers = np.where(to_host >= 1, OPTIMIZER_BUFFERS * OPTIMIZER_BUFFER_BYTES * sub_group, 0.0)
    size = job.precision.compute_bytes
    pool = np.where(to_host == 2, float(PARAMETER_BUFFERS * PARAMETER_BUFFER_ELEMENTS * size), 0.0)
    kept = np.minimum(held.host_parameters, PARAMETERS_IN_HOST * size)
    paged = np.where(to_host == 0, held.host, 0.0)  # the driver pages to the host and to nothing else
    resident = kept + paged + held.host_gradients
    return Placed(host=buffers + pool + resident, nvme=held.host - resident)
