"""Which ranks of DeepSpeed's ZeRO can need the most memory: those that are traced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.deepspeed.stack import STACK
from plimsoll.service.worker.training.building import traced_model
from plimsoll.service.worker.training.rank import learning_parameters

OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED = 1, 2
# stage_1_and_2.py, `nccl_start_alignment_factor`: every part has a multiple of so many elements.
PART_ALIGNMENT = 2


def deciding_ranks(job: TraceJob) -> tuple[int, ...]:
    """Return the ranks of which one needs the most, without repetition.

    At stages 1 and 2 parameters lie end to end and are cut into equal parts, and a rank keeps whole gradients of the
    tensors that its part touches, or the host does. Stage 2 reduces from the last tensor on, when all that the forward
    pass saved is still there; stage 1 from the first one on, when all gradients still are. At other stages ranks are
    alike.
    """
    ranks = job.data_parallel
    if job.zero_stage not in (OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED) or ranks == 1:
        return (0,)
    with FakeTensorMode(allow_non_fake_inputs=True):
        sizes = [parameter.numel() for parameter in learning_parameters(traced_model(job, STACK))]
    touched, slices = shares(sizes, ranks)
    # What a rank sends to the host at once is the largest slice of one tensor.
    most = [touched, slices] if job.states_on_host else [touched]
    if job.zero_stage == OPTIMIZER_DIVIDED:
        chosen = [0, *(int(np.argmax(elements)) for elements in most)]
    else:
        chosen = [ranks - 1, *(ranks - 1 - int(np.argmax(elements[::-1])) for elements in most)]
    return tuple(dict.fromkeys(chosen))


def shares(sizes: Sequence[int], ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each rank's elements of the tensors that its part touches, whole ones, and of its largest slice of one."""
    step = PART_ALIGNMENT * ranks
    part = -(-sum(sizes) // step) * PART_ALIGNMENT
    touched, slices = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    start = 0
    for size in sizes:
        end = start + size
        for rank in range(start // part, -(-end // part)):
            touched[rank] += size
            slices[rank] = max(slices[rank], min(end, (rank + 1) * part) - max(start, rank * part))
        start = end
    return touched, slices
