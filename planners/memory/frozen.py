"""Bytes of weights that do not learn: LoRA's base in 16 bits, QLoRA's in four."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planners.architecture import Part, Weight
from planners.formats import tensor_bytes
from planners.layout.candidates import FloatArray
from planners.memory.job import Job
from planners.memory.shards import Divisions, over_experts

# Dettmers et al. 2023 quote half a byte a base parameter, its scales apart (arXiv:2305.14314).
QUOTED_FOUR_BIT_BYTES = 0.5


def frozen_bytes(weights: Sequence[Weight], by: Divisions, job: Job) -> FloatArray:
    """Return what a rank stores of its frozen weights, divided over the shard ranks."""

    def shard(some: Sequence[Weight], cut: Divisions) -> FloatArray:
        whole = [float(sum(frozen_weight_bytes(weight, degree, job) for weight in some)) for degree in cut.degrees]
        return np.ceil(np.array(whole)[cut.degree] / cut.shard_ranks)[cut.inverse]

    return over_experts(shard, weights, by)


def frozen_weight_bytes(weight: Weight, tensor_parallel: int, job: Job) -> float:
    """Return the bytes of one frozen weight of one layer on one tensor-parallel rank.

    bitsandbytes quantizes the layers' matrices and leaves embedding, head and
    norms in 16 bits; the textbook counts half a byte for every parameter.
    """
    elements = weight.local_elements(tensor_parallel)
    if job.method == "qlora" and not job.profile.exact_quantization:
        return elements * QUOTED_FOUR_BIT_BYTES
    if job.method == "qlora" and is_quantized(weight):
        shape = weight.local_shape(tensor_parallel)
        one = tensor_bytes("nf4", shape, double_quantization=job.lora.double_quantization)
        return float(one * weight.experts)
    return float(elements * job.precision.compute_bytes)


def is_quantized(weight: Weight) -> bool:
    """Return whether bitsandbytes would quantize the weight: a layer's matrix."""
    return weight.is_linear and weight.part not in (Part.EMBEDDING, Part.HEAD)


def dequantized_matrix_bytes(weights: Sequence[Weight], tensor_parallel: int, job: Job) -> int:
    """Return the largest matrix that has to be unpacked before it can be multiplied by."""
    if job.method != "qlora" or not job.profile.exact_quantization:
        return 0
    return max(
        (
            math.prod(weight.local_shape(tensor_parallel)) * job.precision.compute_bytes
            for weight in weights
            if is_quantized(weight)
        ),
        default=0,
    )
