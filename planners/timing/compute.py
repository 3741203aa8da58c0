"""Operations to seconds: a roofline for each kind of work.

A matrix product runs at a fraction of the peak that falls for small sides,
attention at its kernel's fraction, everything else at the memory's rate. The
backward pass of a product is two products, one where the weight is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import Block, Operation, OperationKind
from planners.hardware import Hardware
from planners.layout.candidates import Candidates, FloatArray
from planners.memory.job import BlockWeights, Job
from planners.timing.efficiency import Efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One layer (or the head) and one micro-batch on one rank."""

    forward: FloatArray
    backward: FloatArray
    attention: FloatArray
    selective_recompute: FloatArray


def layer_seconds(
    part: BlockWeights, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency
) -> LayerSeconds:
    """Return the seconds of one block's operations."""
    clock = _Clock(layouts, job, hardware, efficiency)
    forward = backward = attention = np.zeros(len(layouts))
    learns = not part.frozen
    for operation in part.block.operations:
        seconds = clock.forward(operation, part.block)
        forward = forward + seconds
        if operation.kind is OperationKind.ATTENTION:
            attention = attention + seconds
            backward = backward + efficiency.attention_backward_multiple * seconds
        elif operation.kind is OperationKind.MATMUL:
            backward = backward + (2.0 if learns else 1.0) * seconds
        else:
            backward = backward + 2.0 * seconds
    return LayerSeconds(
        forward=forward,
        backward=backward,
        attention=attention,
        selective_recompute=_selective(part.block, clock, forward, attention, job),
    )


def _selective(block: Block, clock: _Clock, forward: FloatArray, attention: FloatArray, job: Job) -> FloatArray:
    """Return what selective recompute does again: the scores, or all that alternate products do not keep."""
    policy = job.profile.can.selective_policy
    if policy == "attention_scores":
        return attention if job.attention == "eager" else np.zeros_like(attention)
    if policy != "alternate_matmuls":
        return np.zeros_like(forward)
    kept: Sequence[Operation] = [op for op in block.operations if op.kind is OperationKind.MATMUL][::2]
    return forward - attention - sum((clock.forward(op, block) for op in kept), np.zeros_like(forward))


class _Clock:
    """Knows how long each operation takes on one rank of every layout."""

    def __init__(self, layouts: Candidates, job: Job, hardware: Hardware, efficiency: Efficiency) -> None:
        self._job = job
        self._efficiency = efficiency
        self._tokens = layouts.local_tokens(job.sequence_length)
        self._tensor = layouts.tensor_parallel.astype(np.float64)
        self._sequence_division = np.where(layouts.sequence_parallel, self._tensor, 1.0)
        self._peak = hardware.gpu.peak_flops_per_second[job.precision.compute_format]
        self._bytes_per_second = hardware.gpu.memory_bytes_per_second * efficiency.memory_bandwidth_fraction
        self._traffic = efficiency.traffic_multiple[job.profile.name]
        # Under a causal mask a token attends to half the sequence and itself.
        self._context = (job.sequence_length + 1) / 2

    def forward(self, operation: Operation, block: Block) -> FloatArray:
        """Return one operation's forward seconds."""
        flops = operation.forward_flops_per_token(self._context) * self._tokens / self._tensor
        if operation.kind is OperationKind.MATMUL:
            return flops / (self._peak * self._matmul_fraction(operation))
        if operation.kind is OperationKind.ATTENTION:
            return self._attention(operation, flops)
        return self._moved_bytes(operation, block) * self._traffic / self._bytes_per_second

    def _matmul_fraction(self, operation: Operation) -> FloatArray:
        inputs, outputs = operation.matmul_shape or (1, 1)
        split_inputs, split_outputs = (self._tensor, 1.0) if operation.is_row_parallel else (1.0, self._tensor)
        narrowest = np.minimum(inputs / split_inputs, outputs / split_outputs)
        half_tokens, half_features = self._efficiency.matmul_half_tokens, self._efficiency.matmul_half_features
        fill = self._tokens / (self._tokens + half_tokens) * narrowest / (narrowest + half_features)
        result: FloatArray = self._efficiency.matmul_peak_fraction * fill
        return result

    def _attention(self, operation: Operation, flops: FloatArray) -> FloatArray:
        if self._job.attention == "flash":
            return flops / (self._peak * self._efficiency.attention_peak_fraction)
        kernels = self._job.profile.kernels
        # Eager attention multiplies the whole square and moves its scores through memory, written and read once each.
        scores = operation.heads * self._tokens * self._job.sequence_length / self._tensor
        moved = 2.0 * scores * max(kernels.eager_score_bytes, self._job.precision.compute_bytes)
        products = 2.0 * flops / (self._peak * self._efficiency.matmul_peak_fraction)
        result: FloatArray = products + moved * self._traffic / self._bytes_per_second
        return result

    def _moved_bytes(self, operation: Operation, block: Block) -> FloatArray:
        widths = {tensor.name: tensor.width for tensor in block.tensors}
        names = (*operation.inputs, operation.output)
        elements = sum(widths.get(name, 0) for name in names)
        division = self._sequence_division if operation.region == "sequence" else self._tensor
        result: FloatArray = self._tokens * elements * self._job.precision.compute_bytes / division
        return result
