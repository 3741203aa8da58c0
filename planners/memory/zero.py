"""What DeepSpeed's ZeRO holds beside the states: buckets, gathered weights, gradients of whole tensors, fp32 copies.

Source of each term: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py and
runtime/fp16/fused_optimizer.py, traced operation by operation (docs/agreement.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.layout.candidates import Candidates, FloatArray
from planners.memory.holdings import Holdings
from planners.memory.job import Job
from planners.memory.nvme import SUB_GROUP_ELEMENTS
from planners.memory.stages import StageRows
from planners.precision import FP32_BYTES

# `get_norm_dtype`: the norm of each gradient is taken in fp64.
NORM_BYTES = 8
# runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE: what is reduced at once without ZeRO.
REDUCED_AT_ONCE_ELEMENTS = 500_000_000
WHOLE, OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED, WEIGHTS_DIVIDED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBuffers:
    """Bytes beside the states: during the forward pass, the backward pass, its end, and the update.

    `copied_from` are the elements of gradients that fill a bucket for the first time, `copy` what its reduction
    copies. `touched` are the whole gradients of what a rank's part touches, `temporaries` what the update makes.
    """

    forward: FloatArray
    backward: FloatArray
    end: FloatArray
    step: FloatArray
    copied_from: float
    copy: FloatArray
    touched: FloatArray
    temporaries: FloatArray

    def in_layer(self, finished_elements: FloatArray) -> FloatArray:
        """Return the bytes while a layer is differentiated, so many elements' gradients being made already."""
        result: FloatArray = self.backward + np.where(finished_elements >= self.copied_from, self.copy, 0.0)
        return result


def zero_buffers(layouts: Candidates, rows: StageRows, job: Job, held: Holdings) -> ZeroBuffers | None:
    """Return what DeepSpeed's engine holds, None for a stack without one."""
    traffic = job.profile.zero
    if traffic is None:
        return None
    size, stage, ranks = job.precision.compute_bytes, layouts.zero_stage, layouts.shard_group
    learning = held.stage_elements
    part = np.ceil(learning / ranks)
    bucket = float(size * job.profile.weights.bucket_elements)
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    is_flat = (stage == OPTIMIZER_DIVIDED) | (stage == GRADIENTS_DIVIDED)
    live = np.where(stage == WEIGHTS_DIVIDED, _live_weights(rows, job, held), 0.0)
    waiting = np.where(stage == WEIGHTS_DIVIDED, bucket, 0.0)
    # One rank has nothing to share: what waits is reduced where it lies.
    copy = np.where((ranks > 1) & (stage >= OPTIMIZER_DIVIDED), np.minimum(bucket, size * learning), 0.0)
    largest = _largest_tensor(job)
    touched = np.minimum(_touched_elements(job, part), learning)
    wide = np.where(stage == WEIGHTS_DIVIDED, np.minimum(part, SUB_GROUP_ELEMENTS), part)
    norm = NORM_BYTES * np.where(stage == WEIGHTS_DIVIDED, np.ceil(largest / ranks), np.minimum(part, largest))
    whole_copies = 2.0 * FP32_BYTES * learning  # each gradient in fp32, and then all of them end to end
    return ZeroBuffers(
        forward=waiting + live + np.where((stage == OPTIMIZER_DIVIDED) & accumulates, bucket, 0.0),
        backward=live + np.where(stage >= OPTIMIZER_DIVIDED, bucket, 0.0),
        end=np.where(is_flat, bucket, waiting)
        + np.where(stage == WHOLE, size * np.minimum(learning, REDUCED_AT_ONCE_ELEMENTS), copy),
        step=waiting,
        copied_from=float(job.profile.weights.bucket_elements),
        copy=np.where(stage >= GRADIENTS_DIVIDED, copy, 0.0),
        touched=np.where(is_flat, size * touched, 0.0),
        temporaries=np.where(stage == WHOLE, whole_copies, np.maximum((size + FP32_BYTES) * wide, norm)),
    )


def _live_weights(rows: StageRows, job: Job, held: Holdings) -> FloatArray:
    """Return the bytes of gathered weights: all of them, or as many as the engine gathers ahead.

    It goes on until so many elements are whole, and so with half a matrix more than those at the middle.
    """
    size = job.precision.compute_bytes
    frozen = held.root_frozen + held.layer_frozen * rows.layers
    traffic = job.profile.zero
    most = 0.0 if traffic is None else size * (traffic.max_live_elements + held.largest_matrix_elements / 2)
    result: FloatArray = np.minimum(size * held.stage_elements + frozen, most)
    return result


def _largest_tensor(job: Job) -> int:
    return max((weight.elements for part in job.parts for weight in part.trainable), default=0)


def _touched_elements(job: Job, part: FloatArray) -> FloatArray:
    """Return the elements of the tensors that the last rank's part touches: the model's last ones.

    Its gradients are made first, when all that the layers keep is still there.
    """
    from_the_end = np.cumsum(_tensors(job)[::-1])
    reached = np.minimum(np.searchsorted(from_the_end, part), len(from_the_end) - 1)
    result: FloatArray = from_the_end[reached].astype(np.float64)
    return result


def _tensors(job: Job) -> list[int]:
    """Return the elements of every learning tensor in the model's order: embedding, layers, head."""
    numbered = sorted((number, kind) for kind, part in enumerate(job.layers) for number in part.block.layers)
    in_order = [job.embedding, *(job.layers[kind] for _, kind in numbered), job.head]
    return [weight.elements for part in in_order for weight in part.trainable]
