"""What DeepSpeed's ZeRO holds beside the states: buckets, gathered weights, gradients of whole tensors, fp32 copies.

Source of each term: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py and
runtime/fp16/fused_optimizer.py, traced operation by operation (docs/agreement.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.holdings import Holdings, are_gradients_sent
from plimsoll.planners.memory.nvme import SUB_GROUP_ELEMENTS
from plimsoll.planners.stacks.records import ZeroBuckets

# `get_norm_dtype`: the norm of each gradient is taken in fp64.
NORM_BYTES = 8
# runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE: what is reduced at once without ZeRO.
REDUCED_AT_ONCE_ELEMENTS = 500_000_000
WHOLE, OPTIMIZER_DIVIDED, GRADIENTS_DIVIDED, WEIGHTS_DIVIDED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBuffers:
    """Bytes beside the states, by the moments of a step.

    `bucket` is allocated throughout the backward pass, and with it the buffer in which offloaded gradients are added
    up; `copy` is made as gradients are reduced or sent to the host, once `copied_from` elements' have been made. `live`
    are gathered weights, of `weights` in all. `touched` are the whole gradients of the tensors that a rank's part
    touches, none where they are sent, `kept` those of the micro-batches before, `tied` the gradient of a head that
    waits for its embedding's, `embedding` that of the embedding. `temporaries` are what the update makes.
    """

    forward: FloatArray
    step: FloatArray
    bucket: FloatArray
    copy: FloatArray
    copied_from: float
    end_copy: FloatArray
    live: FloatArray
    weights: FloatArray
    touched: FloatArray
    kept: FloatArray
    tied: FloatArray
    embedding: FloatArray
    temporaries: FloatArray
    divides_gradients: BoolArray

    def in_layer(self, finished_bytes: FloatArray, finished_elements: FloatArray) -> FloatArray:
        """Return bucket, copy and gathered weights while a layer is differentiated, so much being done already."""
        copy = np.where(finished_elements >= self.copied_from, self.copy, 0.0)
        result: FloatArray = self.bucket + copy + np.minimum(self.live, np.maximum(self.weights - finished_bytes, 0.0))
        return result

    def gradients_in_layer(self, gradients: FloatArray, fresh: FloatArray, finished: FloatArray) -> FloatArray:
        """Return the gradients while a layer is differentiated: at stage 2 none are kept before the first reduction."""
        reduced = np.where(finished >= self.copied_from, self.touched, 0.0)
        whole = np.where(self.divides_gradients, self.kept + reduced + fresh, gradients)
        result: FloatArray = np.ceil(whole + self.tied)
        return result


def zero_buffers(layouts: Candidates, rows: StageRows, job: Job, held: Holdings) -> ZeroBuffers | None:
    """Return what DeepSpeed's engine holds, None for a stack without one."""
    told = job.profile.zero
    if told is None:
        return None
    size, stage, ranks = job.precision.compute_bytes, layouts.zero_stage, layouts.shard_group
    learning = held.stage_elements
    part = np.ceil(learning / ranks)
    bucket = float(size * told.reduce_bucket_elements)
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    is_flat = (stage == OPTIMIZER_DIVIDED) | (stage == GRADIENTS_DIVIDED)
    is_sharded = stage == WEIGHTS_DIVIDED
    # The engine gathers ahead until so many elements are whole: on average half a matrix more.
    weights = size * learning + held.root_frozen + held.layer_frozen * rows.layers
    most = size * (told.max_live_elements + held.largest_matrix_elements / 2)
    live = np.where(is_sharded, np.minimum(weights, most), 0.0)
    largest = _largest_tensor(job.parts)
    # `temp_grad_buffer_for_gpu_offload`: gradients that wait on the host are added to on the device.
    staged = np.where((layouts.offload >= 1) & is_flat, size * float(largest), 0.0)
    resting = np.where(is_sharded, bucket, 0.0) + staged
    # One rank has nothing to share: what waits is reduced where it lies.
    copy = np.where((ranks > 1) & (stage >= GRADIENTS_DIVIDED), np.minimum(bucket, size * learning), 0.0)
    keeps_touched = is_flat & ~are_gradients_sent(layouts, job)
    touched = np.where(keeps_touched, size * np.minimum(_touched_elements(job, part), learning), 0.0)
    embedding = size * (held.root_elements - held.head_elements)
    return ZeroBuffers(
        forward=resting + live + np.where((stage == OPTIMIZER_DIVIDED) & accumulates, bucket, 0.0),
        step=resting,
        bucket=np.where(stage >= OPTIMIZER_DIVIDED, bucket, 0.0) + staged,
        copy=np.maximum(copy, _sending(layouts, job, part, _largest_tensor((*job.layers, job.head)), told)),
        copied_from=float(told.reduce_bucket_elements),
        end_copy=np.maximum(
            _end_copy(layouts, size, bucket, embedding, size * learning), _sending(layouts, job, part, largest, told)
        ),
        live=live,
        weights=weights,
        touched=touched,
        kept=np.where(accumulates, touched, 0.0),
        tied=np.where(job.model.tied_head, size * held.head_matrix_elements, 0.0),
        embedding=np.where(stage >= GRADIENTS_DIVIDED, embedding, 0.0),
        temporaries=_update_temporaries(layouts, job, held, part),
        divides_gradients=stage == GRADIENTS_DIVIDED,
    )


def _end_copy(
    layouts: Candidates, size: int, bucket: float, embedding: FloatArray, gradients: FloatArray
) -> FloatArray:
    """Return the largest copy that is reduced as the embedding's gradient, the last, has been made.

    It fits into no bucket where it is larger, and is then copied by itself; at stage 1 the bucket's own copy takes
    the place of gradients that have been let go of.
    """
    beside = np.minimum(bucket, np.maximum(gradients - embedding, 0.0))
    alone = np.where(embedding > bucket, embedding, 0.0)
    of_stage = [
        np.minimum(gradients, size * REDUCED_AT_ONCE_ELEMENTS),
        alone,
        np.maximum(beside, alone),
        beside,
    ]
    is_shared = (layouts.shard_group > 1) | (layouts.zero_stage == WHOLE)
    result: FloatArray = np.where(is_shared, np.choose(layouts.zero_stage, of_stage), 0.0)
    return result


def _sending(layouts: Candidates, job: Job, part: FloatArray, largest: int, told: ZeroBuckets) -> FloatArray:
    """Return what is made on the device as a gradient of so many elements is sent to the host.

    Its norm is taken in fp64, and then it is cast to fp32 (stage_1_and_2.py, `copy_grads_in_partition`; stage3.py,
    `_offload_grad_partition_at_boundary`); stage 3 copies it back before that, and to drives a bucket's go at once.
    """
    is_flat = layouts.zero_stage < WEIGHTS_DIVIDED
    own = np.where(is_flat, np.minimum(part, largest), np.ceil(largest / layouts.shard_group))
    making = np.where(is_flat, NORM_BYTES, NORM_BYTES + job.precision.compute_bytes) * own
    if job.offload_target == "nvme":
        making = making + FP32_BYTES * np.minimum(part, told.reduce_bucket_elements / layouts.shard_group)
    return np.where(are_gradients_sent(layouts, job), making, 0.0)


def _largest_tensor(parts: Sequence[BlockWeights]) -> int:
    """Return the elements of the largest tensor that learns."""
    return max((weight.elements for part in parts for weight in part.trainable), default=0)


def _update_temporaries(layouts: Candidates, job: Job, held: Holdings, part: FloatArray) -> FloatArray:
    """Return the copies that the update makes: gradients end to end and in fp32, or one in fp64 for its norm."""
    stage, size = layouts.zero_stage, job.precision.compute_bytes
    whole = 2.0 * FP32_BYTES * held.stage_elements  # each gradient in fp32, and then all of them end to end
    largest = _largest_tensor(job.parts)
    is_sharded = stage == WEIGHTS_DIVIDED
    at_once = np.where(is_sharded, np.minimum(part, SUB_GROUP_ELEMENTS), part)
    norm = NORM_BYTES * np.where(is_sharded, np.ceil(largest / layouts.shard_group), np.minimum(part, largest))
    return np.where(stage == WHOLE, whole, np.maximum((size + FP32_BYTES) * at_once, norm))


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
